"""Wrappers: functions from Environment to Environment."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment
from boonta.core.types import LAST, Action, Array, Key, PyTree, TimeStep
from boonta.envs.errors import require
from boonta.envs.parts import renamed, with_mask


class Timed(NamedTuple):
    """The state of `time_limit`: the inner environment's, and the steps made (int32 [])."""

    inner: PyTree
    time: Array


class Stacked(NamedTuple):
    """The state of `frame_stack`: the inner environment's, and the last n observations, oldest first, [..., n * C]."""

    inner: PyTree
    frames: Array


def time_limit(environment: Environment, steps: int) -> Environment:
    """Cuts every episode after `steps` steps: LAST, with the discount left as it is, 0 only if the end is true.

    Raises:
        ValueError: `steps` is less than 1.
    """
    require(steps >= 1, "steps", steps, "at least 1")

    def reset(key: Key) -> tuple[Timed, TimeStep]:
        state, timestep = environment.reset(key)
        return Timed(state, jnp.zeros((), jnp.int32)), timestep

    def step(state: Timed, action: Action, key: Key) -> tuple[Timed, TimeStep]:
        inner, timestep = environment.step(state.inner, action, key)
        time = state.time + 1
        over = time >= steps
        return Timed(inner, time), timestep._replace(step_type=jnp.where(over, LAST, timestep.step_type))

    return environment._replace(reset=reset, step=step, render=_render_inner(environment))


def scale_reward(environment: Environment, scale: float) -> Environment:
    """Multiplies every reward by `scale`."""
    return _map_reward(environment, lambda reward: reward * scale)


def clip_reward(environment: Environment, low: float = -1.0, high: float = 1.0) -> Environment:
    """Clips every reward to [low, high]; the bounds must include 0, the reward at FIRST.

    Raises:
        ValueError: they do not.
    """
    require(low <= 0 <= high, "low, high", (low, high), "on either side of 0")
    return _map_reward(environment, lambda reward: jnp.clip(reward, low, high))


def frame_stack(environment: Environment, n: int) -> Environment:
    """Shows the last `n` observations, joined along the last axis, the newest last: [..., C] becomes [..., n * C].

    At FIRST the first observation is repeated n times.

    Raises:
        ValueError: `n` is less than 1, or the observation is not one array of at least one axis.
    """
    require(n >= 1, "n", n, "at least 1")
    single = _one_array(environment, "frame_stack")
    stacked = jax.ShapeDtypeStruct((*single.shape[:-1], n * single.shape[-1]), single.dtype)

    def reset(key: Key) -> tuple[Stacked, TimeStep]:
        state, timestep = environment.reset(key)
        frames = jnp.concatenate([timestep.observation] * n, axis=-1)
        return Stacked(state, frames), timestep._replace(observation=frames)

    def step(state: Stacked, action: Action, key: Key) -> tuple[Stacked, TimeStep]:
        inner, timestep = environment.step(state.inner, action, key)
        frames = jnp.concatenate([state.frames[..., single.shape[-1] :], timestep.observation], axis=-1)
        return Stacked(inner, frames), timestep._replace(observation=frames)

    spec = environment.spec._replace(observation=stacked)
    return Environment(spec, reset, step, _render_inner(environment))


def hide(environment: Environment, indices: Sequence[int]) -> Environment:
    """Drops entries of a vector observation: `hide(cartpole, (1, 3))` hides the velocities.

    Raises:
        ValueError: the observation is not one vector, or an index is not in it, or none would be left.
    """
    full = _one_array(environment, "hide")
    require(len(full.shape) == 1, "observation", full, "a vector, to hide entries of it")
    for index in indices:
        require(0 <= index < full.shape[0], "indices", index, f"from 0 to {full.shape[0] - 1}")
    kept = np.setdiff1d(np.arange(full.shape[0]), indices)
    require(len(kept) > 0, "indices", tuple(indices), "fewer than all entries")

    def shown(timestep: TimeStep) -> TimeStep:
        return timestep._replace(observation=timestep.observation[kept])

    wrapped = _map_timestep(environment, shown)
    return wrapped._replace(spec=wrapped.spec._replace(observation=jax.ShapeDtypeStruct(kept.shape, full.dtype)))


def named_mask(environment: Environment) -> Environment:
    """Calls the observation's `action_mask` `legal`, which agents keep to.

    Raises:
        ValueError: it is no mask over the actions, or there is a `legal` as well.
    """
    spec = environment.spec
    observation = with_mask(spec.name, spec.observation, getattr(spec.action, "n", 0))

    def shown(timestep: TimeStep) -> TimeStep:
        return timestep._replace(observation=renamed(timestep.observation))

    return _map_timestep(environment, shown)._replace(spec=spec._replace(observation=observation))


def _map_reward(environment: Environment, function) -> Environment:
    return _map_timestep(environment, lambda timestep: timestep._replace(reward=function(timestep.reward)))


def _map_timestep(environment: Environment, function) -> Environment:
    def reset(key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = environment.reset(key)
        return state, function(timestep)

    def step(state: PyTree, action: Action, key: Key) -> tuple[PyTree, TimeStep]:
        state, timestep = environment.step(state, action, key)
        return state, function(timestep)

    return environment._replace(reset=reset, step=step)


def _render_inner(environment: Environment):
    render = environment.render
    return None if render is None else lambda state: render(state.inner)


def _one_array(environment: Environment, wrapper: str) -> jax.ShapeDtypeStruct:
    observation = environment.spec.observation
    shape = getattr(observation, "shape", ())
    require(len(shape) >= 1, "observation", observation, f"one array of at least one axis, for {wrapper}")
    return observation
