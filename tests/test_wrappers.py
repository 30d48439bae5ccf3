"""What wrappers change, and what they leave alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.core.types import FIRST, LAST, MID
from boonta.envs import catch, wrappers
from boonta.testing import EnvironmentContract


class Count(NamedTuple):
    time: jax.Array


def counter(end=4):
    """Shows [t, -t, 10 t], pays 10 t and ends truly at `end`."""
    spec = Spec("test:counter", jax.ShapeDtypeStruct((3,), jnp.float32), Discrete(2))

    def observe(state):
        return state.time * jnp.array([1.0, -1.0, 10.0])

    def reset(key):
        state = Count(jnp.zeros((), jnp.int32))
        return state, start(observe(state), spec.action)

    def step(state, action, key):
        state = Count(state.time + 1)
        return state, proceed(observe(state), action, 10.0 * state.time, state.time == end)

    return Environment(spec, reset, step, lambda state: np.full((2, 2, 3), int(state.time), np.uint8))


def play(environment, steps):
    """The time steps of one episode's beginning."""
    state, timestep = environment.reset(jax.random.key(0))
    timesteps = [timestep]
    for i in range(steps):
        state, timestep = environment.step(state, jnp.int32(i % 2), jax.random.key(i))
        timesteps.append(timestep)
    return state, jax.tree.map(lambda *each: np.stack(each), *timesteps)


class TestEverythingAtOnce(EnvironmentContract):
    def make(self):
        return wrappers.time_limit(
            wrappers.frame_stack(wrappers.scale_reward(wrappers.clip_reward(catch.make(rows=4, columns=3)), 2.0), 2), 2
        )


class TestHidden(EnvironmentContract):
    def make(self):
        return wrappers.hide(counter(), (1,))


def test_time_limit_cuts_without_terminating():
    _, timesteps = play(wrappers.time_limit(counter(), 3), 3)
    np.testing.assert_array_equal(timesteps.step_type, [FIRST, MID, MID, LAST])
    np.testing.assert_array_equal(timesteps.discount, [1, 1, 1, 1])


def narrow(end=4):
    """`counter`, in which only action 0 is legal, but at its true end."""
    inner = counter(end)

    def masked(state, timestep):
        legal = jnp.array([True, False]) | (timestep.discount == 0)
        return state, timestep._replace(observation={"seen": timestep.observation, "legal": legal})

    shapes = {"seen": inner.spec.observation, "legal": jax.ShapeDtypeStruct((2,), bool)}
    reset, step = lambda key: masked(*inner.reset(key)), lambda *args: masked(*inner.step(*args))
    return Environment(inner.spec._replace(observation=shapes), reset, step)


class TestNarrowCut(EnvironmentContract):
    def make(self):
        return wrappers.time_limit(narrow(), 3)


def test_time_limit_leaves_the_legal_actions_as_they_are():
    for steps, at_the_end in ((3, [True, False]), (4, [True, True])):
        _, timesteps = play(wrappers.time_limit(narrow(), steps), steps)
        assert timesteps.step_type[-1] == LAST
        np.testing.assert_array_equal(timesteps.observation["legal"][-1], at_the_end)


def test_time_limit_leaves_a_true_end_true():
    for steps in (4, 5):
        _, timesteps = play(wrappers.time_limit(counter(), steps), 4)
        np.testing.assert_array_equal(timesteps.step_type, [FIRST, MID, MID, MID, LAST])
        np.testing.assert_array_equal(timesteps.discount, [1, 1, 1, 1, 0])


def test_rewards_are_scaled_and_clipped():
    _, timesteps = play(wrappers.scale_reward(counter(), 0.1), 3)
    np.testing.assert_allclose(timesteps.reward, [0, 1, 2, 3], rtol=1e-6)
    _, timesteps = play(wrappers.clip_reward(counter(), -1, 15), 3)
    np.testing.assert_array_equal(timesteps.reward, [0, 10, 15, 15])
    assert timesteps.reward.dtype == np.float32


def test_frame_stack_repeats_the_first_and_puts_the_newest_last():
    environment = wrappers.frame_stack(counter(), 3)
    assert environment.spec.observation.shape == (9,)
    _, timesteps = play(environment, 3)
    np.testing.assert_array_equal(timesteps.observation[:, ::3], [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]])
    assert wrappers.frame_stack(catch.make(), 4).spec.observation.shape == (10, 5, 4)


def test_hide_drops_entries():
    environment = wrappers.hide(counter(), (1,))
    _, timesteps = play(environment, 2)
    assert environment.spec.observation.shape == (2,)
    np.testing.assert_array_equal(timesteps.observation, [[0, 0], [1, 10], [2, 20]])


def test_wrappers_draw_the_inner_state():
    environment = wrappers.hide(wrappers.frame_stack(wrappers.time_limit(counter(), 3), 2), (0,))
    state, _ = play(environment, 2)
    assert environment.render is not None and environment.render(state)[0, 0, 0] == 2


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda: wrappers.time_limit(counter(), 0), "steps must be at least 1, got 0"),
        (lambda: wrappers.clip_reward(counter(), 1, 2), "low, high must be on either side of 0"),
        (lambda: wrappers.frame_stack(counter(), 0), "n must be at least 1, got 0"),
        (lambda: wrappers.hide(counter(), (3,)), "indices must be from 0 to 2, got 3"),
        (lambda: wrappers.hide(counter(), (0, 1, 2)), "indices must be fewer than all entries"),
        (lambda: wrappers.hide(catch.make(), (0,)), "observation must be a vector"),
    ],
)
def test_wrong_settings_are_refused(wrap, message):
    with pytest.raises(ValueError, match=message):
        wrap()
