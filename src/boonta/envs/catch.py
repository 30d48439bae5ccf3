"""Catch: a ball falls, a paddle goes to meet it (bsuite; Osband et al., 2020, after Mnih et al., 2014)."""

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
    """int32 scalars: the ball's row and column, and the column of the paddle's centre, always in the last row."""

    row: Array
    column: Array
    paddle: Array


def make(rows: int = 10, columns: int = 5, width: int = 1) -> Environment:
    """The game of catch.

    Observation: bool [rows, columns, 1], the ball and the paddle. Actions: left, stay, right. The ball starts at the
    top in a random column and falls one row a step; when it reaches the last row the episode ends with reward 1 if
    it meets the paddle, else -1. So an episode has `rows - 1` steps.

    Optimal return 1. Actions at random: -0.6 with one fifth of the columns covered, as by default.

    Args:
        rows: at least 2.
        columns: at least 1; all can be reached in time if `columns // 2 < rows`.
        width: of the paddle, odd. It may stick out at the sides.

    Raises:
        ValueError: a setting is out of its range.
    """
    require(rows >= 2, "rows", rows, "at least 2")
    require(columns >= 1, "columns", columns, "at least 1")
    require(width >= 1 and width % 2 == 1, "width", width, "odd and at least 1")
    spec = Spec("boonta:catch", jax.ShapeDtypeStruct((rows, columns, 1), bool), Discrete(3))

    def catches(state: State, column) -> Array:
        return jnp.abs(column - state.paddle) <= width // 2

    def observe(state: State) -> Array:
        row, column = jnp.arange(rows)[:, None], jnp.arange(columns)
        ball = (row == state.row) & (column == state.column)
        return (ball | (row == rows - 1) & catches(state, column))[..., None]

    def reset(key: Key) -> tuple[State, TimeStep]:
        column = jax.random.randint(key, (), 0, columns)
        state = State(jnp.zeros((), jnp.int32), column, jnp.full((), columns // 2, jnp.int32))
        return state, start(observe(state), spec.action)

    def step(state: State, action: Action, key: Key) -> tuple[State, TimeStep]:
        state = State(state.row + 1, state.column, jnp.clip(state.paddle + action - 1, 0, columns - 1))
        landed = state.row == rows - 1
        reward = jnp.where(landed, jnp.where(catches(state, state.column), 1.0, -1.0), 0.0)
        return state, proceed(observe(state), action, reward, landed)

    def render(state: State) -> np.ndarray:
        return drawing.channels(np.asarray(observe(state)))

    return Environment(spec, reset, step, render)
