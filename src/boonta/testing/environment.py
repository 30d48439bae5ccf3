"""What every environment must do, as tests that the author of one inherits."""

import itertools
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, advance
from boonta.core.spec import Continuous, Discrete
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep


class EnvironmentContract:
    """Inherit it in a test module, as `class TestMine(EnvironmentContract)`, and say how the environment is made.

    Attributes:
        steps: how long the trajectory is that most tests look at; random actions.
        episode_ends_within: steps within which an episode with random actions ends, or None if it need not.
    """

    steps: ClassVar[int] = 50
    episode_ends_within: ClassVar[int | None] = 1000

    def make(self) -> Environment:
        """The environment under test."""
        raise NotImplementedError

    def test_spec_describes_the_environment(self):
        spec = self._environment().spec
        assert isinstance(spec.name, str) and spec.name, "spec.name must be a string that is not empty"
        assert spec.frames_per_step >= 1, f"spec.frames_per_step must be at least 1, got {spec.frames_per_step}"
        if isinstance(spec.action, Continuous):
            for bound in (spec.action.low, spec.action.high):
                assert np.shape(bound) == spec.action.shape, f"bounds must have the shape {spec.action.shape}"
            assert np.all(spec.action.low <= spec.action.high), "low must not be above high"
        else:
            assert isinstance(spec.action, Discrete) and spec.action.n >= 1, f"not an action spec: {spec.action!r}"

    def test_shapes_and_dtypes_match_the_spec_at_reset_and_step(self):
        environment = self._environment()
        key, action = jax.random.key(0), environment.spec.action.zero()
        state, first = jax.eval_shape(environment.reset, key)
        next_state, second = jax.eval_shape(environment.step, state, action, key)
        assert _schema(state) == _schema(next_state), "the state's structure, shapes or dtypes change in a step"
        for timestep in (first, second):
            assert _schema(timestep.observation) == _schema(environment.spec.observation)
            assert _schema(timestep.action) == _schema(action)
            assert _schema(timestep.reward) == _schema(jax.ShapeDtypeStruct((), jnp.float32))
            assert _schema(timestep.discount) == _schema(jax.ShapeDtypeStruct((), jnp.float32))
            assert _schema(timestep.step_type) == _schema(jax.ShapeDtypeStruct((), jnp.int8))

    def test_an_episode_starts_with_first_and_goes_on_with_mid_until_last(self):
        _, timesteps = self._walk()
        kinds = timesteps.step_type
        assert kinds[0] == FIRST
        for before, after in itertools.pairwise(kinds):
            assert after == FIRST if before == LAST else after in (MID, LAST)

    def test_first_has_no_reward_and_no_action(self):
        _, timesteps = self._walk()
        first = timesteps.step_type == FIRST
        assert np.all(timesteps.reward[first] == 0)
        assert np.all(timesteps.discount[first] == 1)
        assert np.all(timesteps.action[first] == 0)

    def test_the_action_comes_back_as_given(self):
        actions, timesteps = self._walk()
        rest = timesteps.step_type[1:] != FIRST
        np.testing.assert_array_equal(timesteps.action[1:][rest], actions[rest])

    def test_discounts_end_only_at_last_and_numbers_are_finite(self):
        _, timesteps = self._walk()
        assert np.all(np.abs(timesteps.discount) <= 1)
        assert np.all(timesteps.discount[timesteps.step_type != LAST] != 0), "discount 0 before LAST"
        for leaf in jax.tree.leaves((timesteps.observation, timesteps.reward)):
            assert np.all(np.isfinite(leaf))

    def test_legal_actions(self):
        _, timesteps = self._walk()
        if not (isinstance(timesteps.observation, dict) and "legal" in timesteps.observation):
            return
        legal = timesteps.observation["legal"]
        spec = self._environment().spec.action
        assert isinstance(spec, Discrete) and legal.dtype == bool and legal.shape[1:] == (spec.n,)
        assert np.all(np.any(legal, axis=-1)), "a step without a legal action"
        assert np.all(legal[timesteps.discount == 0]), "all actions are legal where the discount is 0"

    def test_the_key_decides_everything(self):
        again = jax.tree.map(np.asarray, self._scan()(jax.random.key(1)))
        jax.tree.map(np.testing.assert_array_equal, again, self._walk())

    def test_many_at_once_are_many_one_by_one(self):
        keys = jax.random.split(jax.random.key(2), 3)
        together = jax.jit(jax.vmap(self._trajectory))(keys)
        alone = jax.tree.map(lambda *each: jnp.stack(each), *[self._scan()(key) for key in keys])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), together, alone)

    def test_an_action_out_of_range_is_reported_as_given(self):
        environment = self._environment()
        spec = environment.spec.action
        if not isinstance(spec, Continuous):
            return
        key = jax.random.key(0)
        action = jnp.where(np.isfinite(spec.high), spec.high, 0.0) + 10.0
        reset, step = jax.jit(environment.reset), jax.jit(environment.step)
        state, _ = reset(key)
        _, timestep = step(state, action, key)
        np.testing.assert_array_equal(timestep.action, action)
        _, clipped = step(state, jnp.asarray(np.clip(action, spec.low, spec.high)), key)
        np.testing.assert_allclose(timestep.reward, clipped.reward, rtol=1e-5, atol=1e-5)
        for a, b in zip(*map(jax.tree.leaves, (timestep.observation, clipped.observation)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    def test_episodes_end(self):
        if self.episode_ends_within is None:
            return
        kinds = self._walk()[1].step_type
        if not np.any(kinds == LAST):
            kinds = np.asarray(
                jax.jit(lambda key: self._trajectory(key, self.episode_ends_within))(jax.random.key(1))[1].step_type
            )
        assert np.any(kinds == LAST), f"no LAST in {len(kinds) - 1} steps"
        ends = np.flatnonzero(kinds[:-1] == LAST)
        assert np.all(kinds[ends + 1] == FIRST)

    def test_pictures(self):
        environment = self._environment()
        if environment.render is None:
            return
        state, _ = environment.reset(jax.random.key(0))
        for _ in range(2):
            picture = environment.render(state)
            assert isinstance(picture, np.ndarray) and picture.dtype == np.uint8
            assert picture.ndim == 3 and picture.shape[2] == 3, f"a picture is [H, W, 3], got {picture.shape}"
            state, _ = environment.step(state, environment.spec.action.zero(), jax.random.key(1))

    # The tests of one class share what they compile.

    @classmethod
    @cache
    def _environment(cls) -> Environment:
        return cls().make()

    @classmethod
    @cache
    def _scan(cls) -> Any:
        return jax.jit(cls._trajectory)

    @classmethod
    @cache
    def _walk(cls) -> tuple[np.ndarray, TimeStep]:
        return jax.tree.map(np.asarray, cls._scan()(jax.random.key(1)))

    @classmethod
    def _trajectory(cls, key: jax.Array, steps: int | None = None) -> tuple[jax.Array, TimeStep]:
        """Random actions [T, ...] and the time steps [T+1, ...] around them."""
        environment = cls._environment()
        reset_key, key = jax.random.split(key)
        state, first = environment.reset(reset_key)

        def body(carry, key):
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            action = _random_action(environment.spec.action, timestep, action_key)
            state, timestep = advance(environment, state, timestep, action, step_key)
            return (state, timestep), (action, timestep)

        _, (actions, rest) = jax.lax.scan(body, (state, first), jax.random.split(key, steps or cls.steps))
        return actions, jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)


def _random_action(spec: Discrete | Continuous, timestep: TimeStep, key: jax.Array) -> jax.Array:
    if isinstance(spec, Continuous):
        low, high = np.maximum(spec.low, -1e3), np.minimum(spec.high, 1e3)
        return jax.random.uniform(key, spec.shape, minval=low, maxval=high)
    observation = timestep.observation
    if isinstance(observation, dict) and "legal" in observation:
        return jax.random.categorical(key, jnp.where(observation["legal"], 0.0, -1e9)).astype(jnp.int32)
    return jax.random.randint(key, (), 0, spec.n)


def _schema(tree: PyTree) -> Any:
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, jnp.dtype(leaf.dtype)) for leaf in leaves]
