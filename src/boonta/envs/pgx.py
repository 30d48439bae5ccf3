"""The bridge to pgx (Koyamada et al. 2023), board games that compile: https://github.com/sotetsuk/pgx."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.environment import Environment, proceed, start
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Action, Key, PyTree, TimeStep
from boonta.envs import drawing

try:
    import pgx
except ImportError as error:
    raise ImportError(f"the family 'pgx' needs pgx ({error}): pip install 'boonta[games]'") from error

HIDDEN = ("kuhn_poker", "leduc_holdem", "sparrow_mahjong")  # games whose players do not see everything
STONES = ("connect_four", "othello", "tic_tac_toe")  # whose observation is the mover's stones and the opponent's


def names() -> tuple[str, ...]:
    """The names that `make` knows."""
    return tuple(name for name in pgx.available_envs() if name not in HIDDEN)


def make(name: str) -> Environment:
    """A pgx game, for one player or for two who play against each other with the same agent.

    Observation: `board`, as whoever is to move sees it, and `legal`. The reward of a step is that of the player who
    moved. Its discount is -1 where the turn passes to the opponent: the games for two are zero-sum.

    Args:
        name: as in pgx, `tic_tac_toe`.

    Raises:
        ValueError: an unknown name.
    """
    if name not in names():
        raise unknown("environment", name, names(), ENVS, "pgx:")
    with jax.ensure_compile_time_eval():  # constructors make arrays, which a caller's trace must not catch
        game = pgx.make(name)  # type: ignore[arg-type]
    actions = Discrete(int(game.num_actions))

    def seen(state: Any) -> PyTree:
        return {"board": state.observation, "legal": state.legal_action_mask}

    def reset(key: Key) -> tuple[PyTree, TimeStep]:
        state = game.init(key)
        return state, start(seen(state), actions)

    def step(state: Any, action: Action, key: Key) -> tuple[PyTree, TimeStep]:
        mover = state.current_player
        state = game.step(state, action, key)
        mask = state.legal_action_mask
        state = state.replace(legal_action_mask=mask | state.terminated | ~jnp.any(mask))
        passes = state.current_player != mover
        return state, proceed(seen(state), action, state.rewards[mover], state.terminated, state.truncated, passes)

    observation = jax.eval_shape(lambda key: reset(key)[1].observation, jax.random.key(0))
    return Environment(Spec(f"pgx:{name}", observation, actions), reset, step, _renderer(name))


# Drawing.


def _renderer(name: str) -> Callable[[Any], np.ndarray] | None:
    if name in STONES:
        return _draw_stones
    if name.startswith("minatar-"):
        return lambda state: drawing.channels(np.asarray(state.observation))
    return None


def _draw_stones(state: Any) -> np.ndarray:
    """A board whose observation is the mover's stones and the opponent's; each player keeps a colour."""
    mine, theirs = np.moveaxis(np.asarray(state.observation), -1, 0)
    players = (mine, theirs) if int(state.current_player) == 0 else (theirs, mine)
    height, width = mine.shape
    canvas = drawing.canvas(60 * height, 60 * width, left=0, right=width, bottom=0)
    for row, column in np.ndindex(height, width):
        centre = (column + 0.5, height - row - 0.5)
        canvas = drawing.box(canvas, centre, (0.94, 0.94), drawing.GREY)
        canvas = drawing.box(canvas, centre, (0.9, 0.9), drawing.PAPER)
        for stones, colour in zip(players, (drawing.BLUE, drawing.ORANGE), strict=True):
            if stones[row, column]:
                canvas = drawing.disc(canvas, centre, 0.36, colour)
    return drawing.finish(canvas)
