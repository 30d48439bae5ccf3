"""Environments whose `reset` and `step` return one State, as those of Brax and MuJoCo Playground do."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Continuous, Spec
from boonta.core.trees import strong
from boonta.core.types import Action, Array, Key, PyTree, TimeStep
from boonta.envs.errors import require


def of(name: str, game: Any, limit: int, draw: Callable[[Any], np.ndarray]) -> Environment:
    """The environment that such a game is, without wrappers of its own.

    Actions are real, between -1 and 1, and clipped on their way in; the time step reports them as they were given.
    Of observations that are a mapping, what is only for critics (`privileged...`) is left out.

    Args:
        name: `family:Name`.
        game: has `reset(key)`, `step(state, action)` and `action_size`; a State has `obs`, `reward` and `done`.
        limit: steps after which an episode is cut: a time limit, no termination.
        draw: State -> uint8 [H, W, 3]; what it raises is told as a ValueError.

    Raises:
        ValueError: the limit is not positive.
    """
    require(limit > 0, f"episode_length of {name}", limit, "at least 1")
    bound = np.ones(game.action_size, np.float32)
    actions = Continuous(bound.shape, -bound, bound)

    def reset(key: Key) -> tuple[tuple[Any, Array], TimeStep]:
        state = strong(game.reset(jax.random.key_data(key)))  # they keep keys in their state as plain arrays
        return (state, jnp.zeros((), jnp.int32)), start(_seen(state.obs), actions)

    def step(state: tuple[Any, Array], action: Action, key: Key) -> tuple[tuple[Any, Array], TimeStep]:
        inner, steps = state[0], state[1] + 1
        inner = strong(game.step(inner, jnp.clip(action, actions.low, actions.high)))
        timestep = proceed(_seen(inner.obs), action, inner.reward, inner.done > 0, steps >= limit)
        return (inner, steps), timestep

    def render(state: tuple[Any, Array]) -> np.ndarray:
        try:
            return draw(state[0])
        except Exception as error:  # whatever OpenGL raises
            raise ValueError(f"{name} cannot be drawn: {error!r} (MUJOCO_GL=egl needs no display)") from error

    observation = jax.eval_shape(lambda key: reset(key)[1].observation, jax.random.key(0))
    return Environment(Spec(name, observation, actions), reset, step, render)


def _seen(observation: PyTree) -> PyTree:
    if not isinstance(observation, Mapping):
        return observation
    rest = {key: x for key, x in observation.items() if not key.startswith("privileged")}
    return rest if len(rest) > 1 else next(iter(rest.values()))
