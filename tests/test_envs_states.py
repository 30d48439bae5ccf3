"""The bridges to Brax and MuJoCo Playground: the contract, their own games step by step, and what is refused."""

import gc

import jax
import numpy as np
import pytest
from brax import envs as brax_envs
from mujoco_playground import registry as playground_registry

from boonta import envs
from boonta.core.types import LAST, MID
from boonta.envs import brax, playground, states
from boonta.testing import EnvironmentContract
from tests.marks import full, in_full, slow

pytestmark = slow

LENGTH = 12


class StatesContract(EnvironmentContract):
    """The contract, where drawing may lack OpenGL."""

    steps = 2 * LENGTH + 2
    episode_ends_within = LENGTH

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # half-made contexts of OpenGL
    def test_pictures(self):
        state, _ = jax.jit(self._environment().reset)(jax.random.key(0))
        try:
            picture = self._environment().render(state)
        except ValueError as error:
            assert "cannot be drawn" in str(error) and "MUJOCO_GL=egl" in str(error)
        else:
            assert picture.dtype == np.uint8 and picture.ndim == 3
        gc.collect()


class TestBrax(StatesContract):
    def make(self):
        return brax.make("inverted_pendulum", episode_length=LENGTH)


@full
class TestPlayground(StatesContract):
    def make(self):
        return playground.make("CartpoleBalance", episode_length=LENGTH)


def brax_game():
    return brax_envs.get_environment("inverted_pendulum")


def playground_game():
    return playground_registry.load("CartpoleBalance", config_overrides={"impl": "jax"})


@pytest.mark.parametrize(
    ("name", "make_game"),
    [("brax:inverted_pendulum", brax_game), *in_full(("playground:CartpoleBalance", playground_game))],
)
def test_a_trajectory_is_their_own_and_is_cut_by_time_without_termination(name, make_game):
    environment, game = envs.make(name, episode_length=LENGTH), make_game()
    step, theirs_step = jax.jit(environment.step), jax.jit(game.step)
    key, rng = jax.random.key(3), np.random.default_rng(0)
    state, timestep = jax.jit(environment.reset)(key)
    theirs = jax.jit(game.reset)(jax.random.key_data(key))
    np.testing.assert_allclose(timestep.observation, theirs.obs, rtol=1e-6, atol=1e-6)
    for i in range(LENGTH):
        action = rng.uniform(-0.1, 0.1, environment.spec.action.shape).astype(np.float32)
        state, timestep = step(state, action, key)
        theirs = theirs_step(theirs, action)
        np.testing.assert_allclose(timestep.observation, theirs.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(timestep.reward, theirs.reward, rtol=1e-5)
        assert not theirs.done and timestep.discount == 1
        assert timestep.step_type == (LAST if i == LENGTH - 1 else MID)


def test_a_fall_terminates():
    environment = brax.make("inverted_pendulum")
    step, key = jax.jit(environment.step), jax.random.key(0)
    state, timestep = jax.jit(environment.reset)(key)
    for _ in range(200):
        state, timestep = step(state, np.ones(1, np.float32), key)
        if timestep.last():
            break
    assert timestep.step_type == LAST and timestep.discount == 0


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"state": 1, "privileged_state": 2}, 1),
        ({"state": 1, "pixels": 3, "privileged_state": 2}, {"state": 1, "pixels": 3}),
    ],
)
def test_what_is_only_for_critics_is_left_out(given, seen):
    assert states._seen(given) == seen


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("brax:cheetah", {}, "unknown environment brax:cheetah: did you mean 'brax:halfcheetah'"),
        ("brax:fast", {}, "unknown environment brax:"),
        ("brax:ant", {"backends": "mjx"}, "unknown setting of brax:ant 'backends'.*did you mean 'backend'"),
        ("brax:ant", {"backend": "bullet"}, "brax:ant cannot be made with {'backend': 'bullet'}"),
        ("brax:ant", {"episode_length": 0}, "episode_length of brax:ant must be at least 1"),
        ("playground:Cheetah", {}, "unknown environment playground:"),
        ("playground:CheetahRun", {"episode_lengths": 3}, "unknown setting of playground:CheetahRun"),
        ("playground:CheetahRun", {"episode_length": "x"}, "playground:CheetahRun cannot be made with"),
        ("playground:CheetahRun", {"impl": "cuda"}, "playground:CheetahRun cannot be made with"),
    ],
)
def test_bad_names_and_settings_are_refused(name, settings, says):
    with pytest.raises(ValueError, match=says):
        envs.make(name, **settings)
