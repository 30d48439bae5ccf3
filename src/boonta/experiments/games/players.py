"""Who plays a match: a run, random moves, OpenSpiel's Monte Carlo tree search, or an exact solver."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from boonta.core.types import LAST, TimeStep
from boonta.experiments import evaluation, runs

WORDS = "a run folder, random, mcts:N, solver or every"
UCT = 2.0  # OpenSpiel's own default
MEMORY = 1000  # MB of a search's tree


class Player(Protocol):
    """Plays many games at once, whichever side it has in each."""

    def begin(self, count: int) -> None:
        """So many games, from their beginning."""
        ...

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        """Actions int [N] for time steps [N] that all players are shown; those not `mine` are ignored."""
        ...

    def played(self, action: np.ndarray, on: np.ndarray) -> None:
        """What was played, int [N], where games are still on, bool [N]."""
        ...


def player(words: str, game: str, seed: int) -> Player:
    """The player that a command line names.

    Args:
        words: a run folder, `random`, `mcts:N` or `solver`.
        game: `pgx:NAME` or `openspiel:NAME`.
        seed: of its chance.

    Raises:
        ValueError: nobody, or a game that this one cannot play.
    """
    kind, _, number = words.partition(":")
    if words == "random":
        return Random(seed)
    if kind == "mcts":
        if not number.isdigit() or int(number) < 1:
            raise ValueError(f"OPPONENT mcts:N needs a number of simulations, at least 1, got {words!r}")
        return Search(_openspiel(game), int(number), seed)
    if words == "solver":
        return Exact(game, seed)
    if (Path(words) / "config.toml").is_file():
        return Trained(runs.open_run(Path(words)))
    raise ValueError(f"OPPONENT must be {WORDS}, got {words!r}")


class Trained:
    """A run's agent, greedy. It acts on every step of a game, also on those where the other moves."""

    def __init__(self, run: runs.Run) -> None:
        self.run = run
        self._greedy = evaluation.Greedy(run.system.agent)
        self._play: Callable[[TimeStep], np.ndarray] | None = None

    def begin(self, count: int) -> None:
        self._play = self._greedy.player(self.run.params, count)

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        del mine
        assert self._play is not None
        return self._play(timestep)

    def played(self, action: np.ndarray, on: np.ndarray) -> None:
        """It sees that itself."""


class Random:
    """Any legal move, each alike."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def begin(self, count: int) -> None:
        """It remembers nothing."""

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        del mine
        legal = np.asarray(timestep.observation["legal"])
        return np.argmax(self._random.random(legal.shape) * legal, axis=1)

    def played(self, action: np.ndarray, on: np.ndarray) -> None:
        """It remembers nothing."""


class Followed:
    """Players that know a game by its moves."""

    def __init__(self) -> None:
        self._moves: list[list[int]] = []

    def begin(self, count: int) -> None:
        self._moves = [[] for _ in range(count)]

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        chosen = np.zeros(len(mine), int)
        for i in np.flatnonzero(mine & (np.asarray(timestep.step_type) != LAST)):
            chosen[i] = self.choose(self._moves[i])
        return chosen

    def played(self, action: np.ndarray, on: np.ndarray) -> None:
        for i in np.flatnonzero(on):
            self._moves[i].append(int(action[i]))

    def choose(self, moves: list[int]) -> int:
        """The move after these."""
        raise NotImplementedError


class Search(Followed):
    """OpenSpiel's Monte Carlo tree search with random rollouts (UCT, Kocsis and Szepesvari 2006)."""

    def __init__(self, name: str, simulations: int, seed: int) -> None:
        super().__init__()
        import pyspiel

        self._game = pyspiel.load_game(name)
        evaluator = pyspiel.RandomRolloutEvaluator(1, seed)
        self._bot = pyspiel.MCTSBot(self._game, evaluator, UCT, simulations, MEMORY, False, seed, False)

    def choose(self, moves: list[int]) -> int:
        state = self._game.new_initial_state()
        for move in moves:
            state.apply_action(move)
        return self._bot.step(state)


class Exact(Followed):
    """Plays what keeps the value of the position, as its solver knows it; of several moves, any."""

    def __init__(self, game: str, seed: int) -> None:
        super().__init__()
        self._values, self._random = solver(game), np.random.default_rng(seed)

    def choose(self, moves: list[int]) -> int:
        values = self._values(tuple(moves))
        best = [move for move, value in values.items() if value == max(values.values())]
        return int(self._random.choice(best))


Solver = Callable[[tuple[int, ...]], dict[int, int]]  # moves so far -> 1, 0, -1 for whoever moves, of each legal move


def solver(game: str) -> Solver:
    """What every move leads to, by perfect play of both: win, draw or loss.

    Raises:
        ValueError: no game that there is a solver for.
        ImportError: the solver's package is not installed.
    """
    name = game.partition(":")[2]
    if name == "tic_tac_toe":
        return _minimax(_openspiel(game))
    if name == "connect_four":
        return _bitbully()
    raise ValueError(f"there are solvers for tic_tac_toe and connect_four, not for {game}")


def _minimax(name: str) -> Solver:
    """The whole tree, for games as small as tic-tac-toe."""
    import pyspiel

    game = pyspiel.load_game(name)

    @cache
    def value(board: str) -> int:
        """Of whoever moves."""
        state = game.deserialize_state(board)
        if state.is_terminal():
            return -1 if any(state.returns()) else 0  # whoever moved last has won, or nobody has
        return max(-value(state.child(action).serialize()) for action in state.legal_actions())

    def values(moves: tuple[int, ...]) -> dict[int, int]:
        state = game.new_initial_state()
        for move in moves:
            state.apply_action(move)
        return {action: -value(state.child(action).serialize()) for action in state.legal_actions()}

    return values


def _bitbully() -> Solver:
    try:
        import bitbully
    except ImportError as error:
        raise ImportError(
            f"the solver of connect_four needs bitbully ({error}), which is under the AGPL: pip install bitbully"
        ) from error
    exact: Any = bitbully.BitBully()

    def values(moves: tuple[int, ...]) -> dict[int, int]:
        board: Any = bitbully.Board()
        for move in moves:
            board.play(move)
        return {int(move): int(np.sign(score)) for move, score in exact.score_all_moves(board).items()}

    return values


def beginning(game: str, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """Makes the first position of a game with these settings, as OpenSpiel has it.

    Raises:
        ValueError: OpenSpiel does not know the game.
        ImportError: OpenSpiel is not installed.
    """
    name = _openspiel(game)
    import pyspiel

    return pyspiel.load_game(name, dict(settings)).new_initial_state


def _openspiel(game: str) -> str:
    """The game in OpenSpiel with the same moves.

    Raises:
        ValueError: there is none, or chance plays a part.
        ImportError: OpenSpiel is not installed.
    """
    from boonta.envs import openspiel

    family, _, name = game.partition(":")
    same = ("tic_tac_toe", "connect_four", "othello")
    if (family == "pgx" and name in same) or (family == "openspiel" and openspiel.chanceless(name)):
        return name
    raise ValueError(f"searches of OpenSpiel play its games without chance, and {', '.join(same)} of pgx, not {game}")
