"""Memory length: a bit shown once must be said at the end (after bsuite's memory_len; Osband et al., 2020)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Action, Array, Key, TimeStep
from boonta.envs import drawing
from boonta.envs.errors import require


class State(NamedTuple):
    """The bit to remember and the time, int32 scalars."""

    bit: Array
    time: Array


def make(length: int = 10) -> Environment:
    """A task that only memory solves.

    Observation: float32 [3]: the part of the time that is left, from 1 to 0; 1 when the answer is due, else 0; and, at
    time 0 only, the bit as 1 or -1, else 0. Two actions. Those at times 0 ... length - 1 do nothing; the one at time
    `length` ends the episode with reward 1 if it is the bit (0 for -1), else -1. So an episode has `length + 1` steps.

    Optimal return 1. Without memory, and at random, 0.

    Args:
        length: steps over which the bit must be kept, at least 1.

    Raises:
        ValueError: `length` is out of its range.
    """
    require(length >= 1, "length", length, "at least 1")
    spec = Spec("boonta:memory", jax.ShapeDtypeStruct((3,), jnp.float32), Discrete(2))

    def observe(state: State) -> Array:
        left = jnp.maximum(1 - state.time / length, 0)
        shown = jnp.where(state.time == 0, 2 * state.bit - 1, 0)
        return jnp.stack([left, state.time == length, shown]).astype(jnp.float32)

    def reset(key: Key) -> tuple[State, TimeStep]:
        state = State(jax.random.randint(key, (), 0, 2), jnp.zeros((), jnp.int32))
        return state, start(observe(state), spec.action)

    def step(state: State, action: Action, key: Key) -> tuple[State, TimeStep]:
        answered = state.time == length
        reward = jnp.where(answered, jnp.where(action == state.bit, 1.0, -1.0), 0.0)
        state = State(state.bit, state.time + 1)
        return state, proceed(observe(state), action, reward, answered)

    def render(state: State) -> np.ndarray:
        """Time runs to the right; the bit is the colour of the first cell."""
        colours = np.full((1, length + 2, 3), drawing.INK, np.uint8)
        colours[0, 0] = drawing.GREEN if int(state.bit) else drawing.RED
        colours[0, length] = drawing.GREY
        colours[0, int(state.time)] = drawing.WHITE if int(state.time) else colours[0, 0]
        return drawing.tiles(colours, 48)

    return Environment(spec, reset, step, render)
