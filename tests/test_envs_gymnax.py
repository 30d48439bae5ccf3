"""The bridge to gymnax: the contract, its own trajectories step by step, and ends kept apart from time limits."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.spec import Continuous
from boonta.core.types import LAST
from boonta.envs.gymnax import make, names
from boonta.testing import EnvironmentContract
from tests.marks import in_full

MINATAR = [name for name in names() if name.endswith("-MinAtar")]


class TestCartPole(EnvironmentContract):
    def make(self):
        return make("CartPole-v1")


class TestPendulum(EnvironmentContract):
    def make(self):
        return make("Pendulum-v1", max_steps_in_episode=30)


class TestAcrobot(EnvironmentContract):
    def make(self):
        return make("Acrobot-v1", max_steps_in_episode=20)


class TestMountainCarContinuous(EnvironmentContract):
    def make(self):
        return make("MountainCarContinuous-v0", max_steps_in_episode=20)


class TestBreakout(EnvironmentContract):
    def make(self):
        return make("Breakout-MinAtar")


class TestFrozenLake(EnvironmentContract):
    def make(self):
        return make("FrozenLake-misc")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("CartPole-v1", 15),
        ("Pendulum-v1", 20),
        ("Breakout-MinAtar", 80),
        *in_full(("Acrobot-v1", 20), ("MountainCar-v0", 20), ("MountainCarContinuous-v0", 20), ("Catch-bsuite", 5)),
        *in_full(*((name, 80) for name in MINATAR if name != "Breakout-MinAtar")),
    ],
)
def test_a_trajectory_is_gymnaxs_own(name, limit):
    """Reward, ends and observations of every step, the last of each episode included; 0 or 1 if ours are bool."""
    game, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=limit)
    environment = make(name, max_steps_in_episode=limit)

    def body(theirs, key):
        act_key, key = jax.random.split(key)
        action = game.action_space(params).sample(act_key)
        _, stepped, *ended, info = game.step(key, theirs, action, params)
        ours, timestep = environment.step(theirs, action, jax.random.split(key)[0])  # As gymnax splits it.
        stepped = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), stepped, theirs)
        return stepped, (ended, info["final_observation"], stepped, ours, timestep)

    def both(key):
        observation, theirs = game.reset(key, params)
        ours, first = environment.reset(key)
        theirs = jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), theirs, ours)
        return (observation, theirs, ours, first), jax.lax.scan(body, theirs, jax.random.split(key, 200))[1]

    (observation, theirs, ours, timestep), steps = jax.jit(both)(jax.random.key(3))
    _equal(timestep.observation, observation)
    jax.tree.map(_equal, ours, theirs)

    (reward, terminated, truncated), observation, theirs, ours, timestep = jax.tree.map(np.asarray, steps)
    _equal(timestep.observation, observation)
    _equal(timestep.reward, reward)
    _equal(timestep.discount == 0, terminated)
    _equal(timestep.step_type == LAST, terminated | truncated)
    ongoing = timestep.step_type != LAST
    jax.tree.map(lambda a, b: _equal(a[ongoing], b[ongoing]), ours, theirs)
    assert not np.all(ongoing)
    assert (timestep.observation.dtype == bool) == (name in MINATAR)


def _equal(ours, theirs):
    """Up to the rounding that the two programs may do in another order."""
    np.testing.assert_allclose(np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=1e-5, atol=1e-6)


def constantly(environment, action, steps):
    state, _ = environment.reset(jax.random.key(0))
    step = jax.jit(environment.step)
    for i in range(steps):
        state, timestep = step(state, action, jax.random.key(i))
        if timestep.last():
            return i + 1, timestep
    raise AssertionError(f"no end in {steps} steps")


def test_falling_is_a_true_end_and_a_time_limit_is_not():
    steps, timestep = constantly(make("CartPole-v1"), jnp.int32(1), 20)
    assert steps > 5 and timestep.discount == 0 and timestep.reward == 1
    limited, timestep = constantly(make("CartPole-v1", max_steps_in_episode=5), jnp.int32(1), 20)
    assert limited == 5 and timestep.discount == 1
    both, timestep = constantly(make("CartPole-v1", max_steps_in_episode=steps), jnp.int32(1), 20)
    assert both == steps and timestep.discount == 0


def test_real_actions_have_bounds_of_their_shape():
    spec = make("PointRobot-misc").spec.action
    assert isinstance(spec, Continuous) and spec.low.shape == spec.high.shape == spec.shape == (2,)
    spec = make("Pendulum-v1", max_torque=1.0).spec.action
    assert isinstance(spec, Continuous) and spec.high == 1


def test_constructor_arguments_are_settings_too():
    assert make("DeepSea-bsuite", size=5).spec.observation.shape == (5, 5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("CartPole-v2", {}, "unknown environment gymnax:CartPole-v2.*'gymnax:CartPole-v1'"),
        ("CartPole-v1", {"max_steps": 3}, "unknown setting of gymnax:CartPole-v1 'max_steps'.*max_steps_in_episode"),
        ("CartPole-v1", {"gravity": "strong"}, "setting gravity of gymnax:CartPole-v1 must be a number .*'strong'"),
    ],
)
def test_wrong_names_and_settings_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, **settings)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "Breakout-MinAtar"])
def test_pictures_follow_the_state(name):
    environment = make(name)
    assert environment.render is not None
    state, _ = environment.reset(jax.random.key(0))
    later, _ = environment.step(state, environment.spec.action.zero(), jax.random.key(0))
    pictures = [environment.render(state), environment.render(later)]
    assert min(pictures[0].shape[:2]) >= 320
    assert np.any(pictures[0] != pictures[1])


def test_what_cannot_be_drawn_says_so():
    assert make("Swimmer-misc").render is None
