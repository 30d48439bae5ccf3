"""The T-maze of Bakker (2002), "Reinforcement Learning with Long Short-Term Memory"."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Action, Array, Key, TimeStep
from boonta.envs import drawing
from boonta.envs.errors import require

_UP, _RIGHT, _DOWN, _LEFT = range(4)


class State(NamedTuple):
    """Whether the goal is up (bool), the place in the corridor and the time (int32); scalars.

    After the turn, `turn` is 1 up or -1 down; before, 0.
    """

    up: Array
    place: Array
    time: Array
    turn: Array


def make(
    length: int = 10, reward: float = 1.0, wrong: float = -0.1, bump: float = -0.1, limit: int | None = None
) -> Environment:
    """A corridor with a sign at its beginning and a junction at its end; the sign says which way to turn there.

    Observation: float32 [3], as in the paper: 011 or 110 at the first step (the goal is up, or down), 101 in the
    corridor, 010 at the junction. Unlike the paper's, the sign is seen at the first step only, not on coming back.
    Actions: up, right, down, left. At the junction, up and down end the episode, with `reward` for the right turn and
    `wrong` for the other. Walking into a wall costs `bump` and leaves the agent where it is. A time limit cuts
    episodes that never turn.

    Optimal return: `reward`, in `length + 1` steps. The best without memory: (reward + wrong) / 2 in the mean, 0.45 by
    default. At random: -2.5 by default, mostly bumps.

    Args:
        length: steps from the beginning to the junction, at least 1.
        reward: for the right turn. Bakker has 4.
        wrong: for the wrong turn.
        bump: for walking into a wall.
        limit: the time limit; `4 * (length + 1)` if None. More than `length`.

    Raises:
        ValueError: a setting is out of its range.
    """
    require(length >= 1, "length", length, "at least 1")
    limit = 4 * (length + 1) if limit is None else limit
    require(limit > length, "limit", limit, f"more than the length, {length}")
    spec = Spec("boonta:tmaze", jax.ShapeDtypeStruct((3,), jnp.float32), Discrete(4))

    def observe(state: State) -> Array:
        sign = jnp.where(state.up, jnp.array([0.0, 1.0, 1.0]), jnp.array([1.0, 1.0, 0.0]))
        place = jnp.where(state.place == length, jnp.array([0.0, 1.0, 0.0]), jnp.array([1.0, 0.0, 1.0]))
        return jnp.where(state.time == 0, sign, place)

    def reset(key: Key) -> tuple[State, TimeStep]:
        zero = jnp.zeros((), jnp.int32)
        state = State(jax.random.bernoulli(key), zero, zero, zero)
        return state, start(observe(state), spec.action)

    def step(state: State, action: Action, key: Key) -> tuple[State, TimeStep]:
        vertical = (action == _UP) | (action == _DOWN)
        turned = vertical & (state.place == length)
        right = turned & ((action == _UP) == state.up)
        place = jnp.clip(state.place + (action == _RIGHT) - (action == _LEFT), 0, length)
        bumped = ~turned & (place == state.place)
        gained = jnp.where(right, reward, jnp.where(turned, wrong, jnp.where(bumped, bump, 0.0)))
        turn = jnp.where(turned, jnp.where(action == _UP, 1, -1), 0)
        state = State(state.up, place, state.time + 1, turn)
        return state, proceed(observe(state), action, gained, turned, state.time >= limit)

    def render(state: State) -> np.ndarray:
        colours = np.full((3, length + 1, 3), drawing.INK, np.uint8)
        colours[1] = drawing.GREY
        colours[:, length] = drawing.GREY
        colours[0 if bool(state.up) else 2, length] = drawing.GREEN
        colours[1 - int(state.turn), int(state.place)] = drawing.WHITE
        return drawing.tiles(colours, 96)

    return Environment(spec, reset, step, render)
