"""The bridge to MinAtar's own games."""

import numpy as np
import pytest

from boonta import envs
from boonta.core.host import Workers
from boonta.core.types import FIRST, LAST
from boonta.envs import minatar


@pytest.mark.parametrize("name", minatar.names())
def test_a_game_is_minatars_own(name):
    made = envs.make(f"minatar:{name}").make(np.arange(1), 3, 0, Workers("serial"))
    random, timestep = np.random.default_rng(0), made.reset()
    assert timestep.step_type[0] == FIRST
    for _ in range(200):
        if timestep.step_type[0] == LAST:
            break
        action = int(random.integers(6))
        timestep = made.step(np.asarray([action], np.int32))
        assert timestep.observation.dtype == bool and timestep.observation.shape[1:3] == (10, 10)
    assert made.frame().dtype == np.uint8
    made.close()


def test_settings_reach_the_game():
    assert envs.make("minatar:breakout", full_actions=False).spec.action.n == 3
    assert envs.make("minatar:breakout").spec.action.n == 6
    made = envs.make("minatar:freeway", limit=5).make(np.arange(2), 0, 0, Workers("serial"))
    made.reset()
    steps = [made.step(np.zeros(2, np.int32)) for _ in range(5)]
    assert (steps[-1].step_type == LAST).all() and (steps[-1].discount == 1.0).all()
    with pytest.raises(ValueError, match="did you mean 'minatar:breakout'"):
        envs.make("minatar:breakot")
    with pytest.raises(ValueError, match="env.sticky must be from 0 to 1, got 2"):
        envs.make("minatar:breakout", sticky=2)


def test_the_same_seed_is_the_same_game():
    def episode(seed):
        made = envs.make("minatar:breakout").make(np.arange(2), seed, 0, Workers("serial"))
        made.reset()
        return np.stack([made.step(np.asarray([i % 6, (i + 1) % 6], np.int32)).observation for i in range(30)])

    np.testing.assert_array_equal(episode(1), episode(1))
    assert (episode(1) != episode(2)).any()
