"""What every replay must do, as tests that the author of one inherits."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.types import Array, Origin, PyTree, Sample, TimeStep, Trajectory
from boonta.replay.types import Replay


class ReplayContract:
    """Inherit it in a test module, as `class TestMine(ReplayContract)`, and say how the replay is made.

    Attributes:
        hands_out_once: whether each trajectory is handed out exactly once, in the order of arrival.
    """

    hands_out_once: ClassVar[bool] = False

    def make(self, capacity: int, batch: int) -> Replay:
        """A replay of `capacity` trajectories that draws `batch` at a time."""
        raise NotImplementedError

    def test_shapes_and_dtypes_are_kept(self):
        replay = self.make(8, 4)
        one = jax.tree.map(lambda x: x[0], trajectories(0, 1))
        state = replay.init(one)
        assert _schema(state) == _schema(replay.init(jax.eval_shape(lambda: one))), "init needs more than shapes"
        filled = jax.jit(replay.insert)(state, trajectories(0, 4), jnp.ones(4))
        assert _schema(filled) == _schema(state), "insert changes the state's structure, shapes or dtypes"
        drawn, sample = jax.jit(replay.sample)(filled, jax.random.key(0))
        assert _schema(drawn) == _schema(state), "sample changes the state's structure, shapes or dtypes"
        assert _schema(sample.trajectory) == _schema(trajectories(0, 4))
        assert _schema((sample.weights, sample.ids)) == _schema((jnp.ones(4, jnp.float32), jnp.ones(4, jnp.int32)))
        revised = jax.jit(replay.revise)(drawn, sample.ids, jnp.ones(4))
        assert _schema(revised) == _schema(state), "revise changes the state's structure, shapes or dtypes"

    def test_what_comes_out_went_in_whole(self):
        for sample in self._samples(capacity=8, batch=2, insert=4, rounds=5):
            numbers = _numbers(sample)
            assert np.all((numbers >= 0) & (numbers < 20)), f"never inserted: {numbers}"
            _equal(sample.trajectory, _named(numbers))

    def test_weights_are_finite_and_positive(self):
        for sample in self._samples(capacity=8, batch=2, insert=4, rounds=3):
            assert np.all(np.isfinite(sample.weights)) and np.all(np.asarray(sample.weights) > 0)
            if self.hands_out_once:
                np.testing.assert_array_equal(sample.weights, 1)

    def test_each_comes_out_once_in_the_order_of_arrival(self):
        if not self.hands_out_once:
            return
        for capacity, batch, insert in ((8, 4, 4), (8, 2, 4), (12, 6, 2), (4, 4, 4)):
            samples = self._samples(capacity, batch, insert, rounds=12)
            drawn = np.concatenate([_numbers(sample) for sample in samples])
            np.testing.assert_array_equal(drawn, np.arange(12 * insert))

    def test_the_oldest_are_forgotten(self):
        if self.hands_out_once:
            return
        replay, state = self._filled(capacity=4, batch=4, count=12)
        for seed in range(5):
            state, sample = replay.sample(state, jax.random.key(seed))
            assert np.all(_numbers(sample) >= 8), f"older than the capacity allows: {_numbers(sample)}"

    def test_the_key_decides_everything(self):
        replay, state = self._filled(capacity=8, batch=4, count=8)
        a, b = (replay.sample(state, jax.random.key(3)) for _ in range(2))
        _equal(a, b)

    def test_revising_goes_on_working(self):
        """Also for trajectories that have been overwritten meanwhile, and with any finite priority."""
        replay, state = self._filled(capacity=4, batch=2, count=4)
        state, sample = replay.sample(state, jax.random.key(0))
        state = replay.revise(state, sample.ids, jnp.array([0.0, 1e6]))
        old = sample.ids
        state, _ = replay.sample(state, jax.random.key(1))
        state = replay.insert(state, trajectories(4, 4), jnp.ones(4))
        state = replay.revise(state, old, jnp.array([1e6, 0.0]))
        state, sample = replay.sample(state, jax.random.key(2))
        assert np.all(_numbers(sample) >= 4)
        assert np.all(np.isfinite(sample.weights))
        _equal(sample.trajectory, _named(_numbers(sample)))

    def test_it_lives_in_a_scan(self):
        """Insert and sample under one `jax.lax.scan`, as Anakin does, is what they are one by one."""
        replay = self.make(8, 4)

        def body(state: PyTree, i: Array) -> tuple[PyTree, Any]:
            state = replay.insert(state, trajectories(4 * i, 4), jnp.ones(4))
            state, sample = replay.sample(state, jax.random.fold_in(jax.random.key(0), i))
            return replay.revise(state, sample.ids, jnp.ones(4)), sample

        state = replay.init(jax.tree.map(lambda x: x[0], trajectories(0, 1)))
        scanned, samples = jax.jit(lambda state: jax.lax.scan(body, state, jnp.arange(3)))(state)
        for i in range(3):
            state, sample = body(state, jnp.int32(i))
            _equal(sample, jax.tree.map(lambda x, i=i: x[i], samples))
        _equal(state, scanned)

    def _filled(self, capacity: int, batch: int, count: int) -> tuple[Replay, PyTree]:
        """The replay, jitted, after `count` insertions in fours."""
        made = self.make(capacity, batch)
        replay = made._replace(insert=jax.jit(made.insert), sample=jax.jit(made.sample), revise=jax.jit(made.revise))
        state = replay.init(jax.tree.map(lambda x: x[0], trajectories(0, 1)))
        for start in range(0, count, 4):
            state = replay.insert(state, trajectories(start, 4), jnp.ones(4))
        return replay, state

    def _samples(self, capacity: int, batch: int, insert: int, rounds: int) -> list[Sample]:
        """Insert and draw in turn, as many as came in, as soon as they suffice."""
        replay, state = self._filled(capacity, batch, 0)
        samples, waiting = [], 0
        for i in range(rounds):
            state = replay.insert(state, trajectories(i * insert, insert), jnp.ones(insert))
            waiting += insert
            while waiting >= batch:
                state, sample = replay.sample(state, jax.random.fold_in(jax.random.key(0), len(samples)))
                state = replay.revise(state, sample.ids, jnp.ones(batch))
                samples.append(sample)
                waiting -= batch
        return samples


def trajectories(start: Array | int, count: int, length: int = 3) -> Trajectory:
    """Trajectories [count, ...] numbered from `start`, each of whose entries tells its number."""
    return _named(start + jnp.arange(count, dtype=jnp.int32), length)


def _named(numbers: Array | np.ndarray, length: int = 3) -> Trajectory:
    count, n = len(numbers), jnp.asarray(numbers, jnp.int32)
    time = jnp.arange(length + 1)
    at = n[:, None] + 0 * time
    real = at + time / 10.0
    image = (at[..., None] + jnp.arange(2)).astype(jnp.uint8)
    observation = {"image": image, "legal": jnp.ones((count, length + 1, 3), bool)}
    timesteps = TimeStep(observation, at, real, jnp.ones_like(real), jnp.ones_like(at, jnp.int8))
    extras = {"log_prob": -real[:, :-1], "sample": at[:, :-1]}
    zero = jnp.zeros_like(n)
    return Trajectory({"h": n[:, None] * jnp.ones(2)}, timesteps, extras, Origin(n, zero, n, zero))


def _numbers(sample: Sample) -> np.ndarray:
    return np.asarray(sample.trajectory.origin.environment)


def _equal(actual: PyTree, expected: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def _schema(tree: PyTree) -> Any:
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
