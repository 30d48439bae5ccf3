"""The bridge to OpenSpiel (Lanctot et al. 2019): games that hide nothing, for one player or for two."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from boonta.core import host
from boonta.core.names import ENVS, unknown
from boonta.core.spec import Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, TimeStep
from boonta.envs import drawing, workers
from boonta.envs.errors import not_made

try:
    import pyspiel
except ImportError as error:
    raise ImportError(f"the family 'openspiel' needs OpenSpiel ({error}): pip install 'boonta[games]'") from error


def names() -> tuple[str, ...]:
    """The games whose moves come one after the other, that hide nothing, and that are zero-sum if two play."""
    return tuple(sorted(kind.short_name for kind in pyspiel.registered_games() if _fits(kind)))


def chanceless(name: str) -> bool:
    """Whether it is a game of `names`, and nothing in it is left to chance."""
    deterministic = pyspiel.GameType.ChanceMode.DETERMINISTIC
    return any(kind.short_name == name and kind.chance_mode == deterministic for kind in pyspiel.registered_games())


def make(name: str, **settings: Any) -> host.Host:
    """A game of OpenSpiel, for one player or for two who play against each other with the same agent.

    Observation: `board`, what OpenSpiel shows whoever is to move, its channels last, and `legal`. The reward of a step
    is that of the player who moved, chance included that comes after. Its discount is -1 where the turn passes to the
    opponent.

    Args:
        name: as in OpenSpiel, `tic_tac_toe`.
        **settings: the game's parameters, such as `rows` of `connect_four`.

    Raises:
        ValueError: an unknown game or parameter, or more than two players.
    """
    if name not in names():
        raise unknown("environment", name, names(), ENVS, "openspiel:")
    try:
        game = pyspiel.load_game(name, settings)
    except pyspiel.SpielError as error:
        raise not_made(f"openspiel:{name}", settings, error) from error
    if game.num_players() > 2:
        raise ValueError(f"openspiel:{name} must be for one player or two, got {game.num_players()}")
    actions = game.num_distinct_actions()
    observation = {"board": Shape(_board(game), np.float32), "legal": Shape((actions,), np.bool_)}
    spec = Spec(f"openspiel:{name}", observation, Discrete(actions))
    return workers.spread(spec, partial(Serial, spec, name, settings))


class Serial:
    """Games stepped one after the other, written into the arrays of a TimeStep.

    Args:
        spec: Spec.
        name: of the game.
        settings: its parameters.
        seeds: of the chance in each.
        out: TimeStep [E, ...] of NumPy arrays that is written into.
    """

    def __init__(self, spec: Spec, name: str, settings: dict[str, Any], seeds: Sequence[int], out: TimeStep) -> None:
        self.spec, self.out, self.game = spec, out, pyspiel.load_game(name, settings)
        self.random = [np.random.default_rng(seed) for seed in seeds]
        self.states: list[Any] = [None] * len(self.random)

    def reset(self) -> TimeStep:
        for i in range(len(self.states)):
            self._begin(i)
        return self.out

    def step(self, action: np.ndarray) -> TimeStep:
        for i in range(len(self.states)):
            if self.out.step_type[i] == LAST:
                self._begin(i)
            else:
                self._move(i, int(action[i]))
        return self.out

    def frame(self) -> np.ndarray:
        board = np.asarray(self.out.observation["board"][0])
        if board.ndim != 3:
            raise ValueError(f"{self.spec.name} cannot be drawn: what is seen of it is no board, but {board.shape}")
        return drawing.channels(board > 0)

    def close(self) -> None:
        self.states = []

    def _begin(self, i: int) -> None:
        self.states[i] = self.game.new_initial_state()
        self._chance(i)
        self._write(i, self.states[i].current_player(), 0, 0.0, 1.0, FIRST)

    def _move(self, i: int, action: int) -> None:
        state = self.states[i]
        mover = state.current_player()
        before = state.returns()[mover]
        state.apply_action(action)
        self._chance(i)
        reward = state.returns()[mover] - before
        if state.is_terminal():
            viewer = 1 - mover if self.game.num_players() == 2 else mover
            self._write(i, viewer, action, reward, 0.0, LAST)
        else:
            viewer = state.current_player()
            self._write(i, viewer, action, reward, 1.0 if viewer == mover else -1.0, MID)

    def _chance(self, i: int) -> None:
        state = self.states[i]
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(int(self.random[i].choice(outcomes, p=np.asarray(chances) / sum(chances))))

    def _write(self, i: int, viewer: int, action: int, reward: float, discount: float, kind: np.int8) -> None:
        state, out = self.states[i], self.out
        tensor = np.asarray(state.observation_tensor(viewer), np.float32).reshape(self.game.observation_tensor_shape())
        out.observation["board"][i] = np.moveaxis(tensor, 0, -1) if tensor.ndim == 3 else tensor
        out.observation["legal"][i] = True if discount == 0.0 else state.legal_actions_mask()
        out.action[i], out.reward[i], out.discount[i], out.step_type[i] = action, reward, discount, kind  # type: ignore[index]


def _fits(kind: Any) -> bool:
    types = pyspiel.GameType
    return (
        kind.dynamics == types.Dynamics.SEQUENTIAL
        and kind.information == types.Information.PERFECT_INFORMATION
        and kind.chance_mode != types.ChanceMode.SAMPLED_STOCHASTIC
        and kind.provides_observation_tensor
        and kind.default_loadable
        and kind.min_num_players <= 2
        and (kind.utility == types.Utility.ZERO_SUM or kind.min_num_players == 1)
    )


def _board(game: Any) -> tuple[int, ...]:
    """The shape of what is seen, channels last."""
    shape = tuple(game.observation_tensor_shape())
    return (*shape[1:], shape[0]) if len(shape) == 3 else shape
