"""The contract of replays, held by each of ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.replay.once import once
from boonta.testing.replay import ReplayContract, trajectories


class TestOnce(ReplayContract):
    hands_out_once = True

    def make(self, capacity, batch):
        return once(capacity, batch)


def test_the_capacity_must_be_a_multiple_of_the_batch():
    with pytest.raises(ValueError, match="multiple of batch, got 6 and 4"):
        once(6, 4)


def test_the_capacity_must_be_a_multiple_of_what_is_inserted():
    replay = once(6, 2)
    state = replay.init(jax.tree.map(lambda x: x[0], trajectories(0, 1)))
    with pytest.raises(ValueError, match="6 and 4"):
        replay.insert(state, trajectories(0, 4), jnp.ones(4))


def test_priorities_do_not_matter():
    replay = once(4, 4)
    state = replay.init(jax.tree.map(lambda x: x[0], trajectories(0, 1)))
    state = replay.insert(state, trajectories(0, 4), jnp.array([0.0, 9.0, 1.0, 1.0]))
    _, sample = replay.sample(state, jax.random.key(0))
    np.testing.assert_array_equal(sample.trajectory.origin.environment, np.arange(4))
    np.testing.assert_array_equal(sample.weights, 1)
