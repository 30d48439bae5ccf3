"""Probes: the smallest environments, each of which fails for one reason, to find out whether an agent learns at all."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Continuous, Discrete, Spec
from boonta.core.types import Action, Array, Key, TimeStep
from boonta.envs import drawing
from boonta.envs.errors import require


class Step(NamedTuple):
    """The time, int32 scalar."""

    time: Array


class Target(NamedTuple):
    """What the first observation shows, float32 [size]."""

    target: Array


def value(reward: float = 1.0) -> Environment:
    """Is a constant reward's value learnt?

    Observation: float32 [1], always 1. Two actions, which do nothing. Each episode is one step with `reward`.

    Every policy's return, and the true value, is `reward`.
    """
    return _fixed("boonta:probe-value", 1, reward)


def discount(length: int = 2, reward: float = 1.0) -> Environment:
    """Is the value carried back, and discounted?

    Observation: float32 [1], the time over `length`. Two actions, which do nothing. Each episode is `length` steps, the
    last with `reward`, the others with 0.

    Every policy's return is `reward`; the true value at time t is `reward * gamma ** (length - 1 - t)`.

    Raises:
        ValueError: `length` is less than 1.
    """
    require(length >= 1, "length", length, "at least 1")
    return _fixed("boonta:probe-discount", length, reward)


def _fixed(name: str, length: int, reward: float) -> Environment:
    spec = Spec(name, jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2))

    def observe(state: Step) -> Array:
        return jnp.full((1,), state.time / length if length > 1 else 1.0, jnp.float32)

    def reset(key: Key) -> tuple[Step, TimeStep]:
        state = Step(jnp.zeros((), jnp.int32))
        return state, start(observe(state), spec.action)

    def step(state: Step, action: Action, key: Key) -> tuple[Step, TimeStep]:
        state = Step(state.time + 1)
        over = state.time == length
        return state, proceed(observe(state), action, jnp.where(over, reward, 0.0), over)

    def render(state: Step) -> np.ndarray:
        colours = np.full((1, length + 1, 3), drawing.INK, np.uint8)
        colours[0, int(state.time)] = drawing.WHITE
        return drawing.tiles(colours, 48)

    return Environment(spec, reset, step, render)


def context() -> Environment:
    """Does the policy look at the observation? A bandit with two arms and two contexts.

    Observation: float32 [1], 1 or -1 with equal chance. Two actions. Each episode is one step: reward 1 if the action
    is 1 just when the observation is 1, else -1.

    Optimal return 1, at random 0, and 0 too for a policy that does not look.
    """
    spec = Spec("boonta:probe-context", jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2))

    def reset(key: Key) -> tuple[Target, TimeStep]:
        target = jax.random.rademacher(key, (1,), jnp.float32)
        return Target(target), start(target, spec.action)

    def step(state: Target, action: Action, key: Key) -> tuple[Target, TimeStep]:
        reward = state.target[0] * (2.0 * action - 1.0)
        return state, proceed(state.target, action, reward, jnp.array(True))

    return Environment(spec, reset, step, _draw_target)


def reach(size: int = 1) -> Environment:
    """Does a continuous policy find the middle of a parabola, wherever it is?

    Observation: float32 [size], uniform in [-1, 1]. Actions: float32 [size] in [-1, 1], clipped to that. Each episode
    is one step, with minus the mean of the squared differences of action and observation as its reward.

    Optimal return 0; uniform random actions have -2/3, and always acting 0 has -1/3.

    Raises:
        ValueError: `size` is less than 1.
    """
    require(size >= 1, "size", size, "at least 1")
    bound = np.ones((size,), np.float32)
    spec = Spec("boonta:probe-reach", jax.ShapeDtypeStruct((size,), jnp.float32), Continuous((size,), -bound, bound))

    def reset(key: Key) -> tuple[Target, TimeStep]:
        target = jax.random.uniform(key, (size,), jnp.float32, -1.0, 1.0)
        return Target(target), start(target, spec.action)

    def step(state: Target, action: Action, key: Key) -> tuple[Target, TimeStep]:
        reward = -jnp.mean((jnp.clip(action, -1.0, 1.0) - state.target) ** 2)
        return state, proceed(state.target, action, reward, jnp.array(True))

    return Environment(spec, reset, step, _draw_target)


def _draw_target(state: Target) -> np.ndarray:
    """A cell for each number: darker is less."""
    shade = np.rint((np.asarray(state.target) + 1) * 127.5).astype(np.uint8)
    return drawing.tiles(np.repeat(shade[None, :, None], 3, axis=-1), 48)
