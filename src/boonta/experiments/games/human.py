"""A person at the terminal against a run's agent."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from boonta.core.types import TimeStep
from boonta.experiments import runs
from boonta.experiments.games import match
from boonta.experiments.games.players import Followed, Trained, beginning


class Left(Exception):
    """The person has had enough."""


def play(run: runs.Run, first: bool, ask: Callable[[str], str], tell: Callable[[str], None]) -> float:
    """One game.

    Args:
        run: opened; its environment a game for two.
        first: whether the person moves first.
        ask: prompt -> what is typed; EOFError ends the game.
        tell: shows a text.

    Returns:
        The total of the person: above 0 for a win, 0 for a draw.

    Raises:
        ValueError: no game for two.
        Left: the person gave up.
    """
    host = match.table(run.config.env, dict(run.config.env_settings))
    person, agent = Person(run.config.env, match.rules(run), ask, tell), Told(run, tell)
    sides = (person, agent) if first else (agent, person)
    total = float(match.played(host, sides, 1)[0]) * (1 if first else -1)
    tell(person.board())
    tell("you win" if total > 0 else "you lose" if total < 0 else "a draw")
    return total


class Person(Followed):
    """Asks for the number of an action."""

    def __init__(
        self, game: str, settings: Mapping[str, Any], ask: Callable[[str], str], tell: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._ask, self._tell = ask, tell
        self._legal = np.zeros(0, bool)
        self._begin: Callable[[], Any] | None = None
        try:
            self._begin = beginning(game, settings)
        except (ImportError, ValueError):
            tell("(there is no picture of the board: its game is not one of OpenSpiel's, or that is not installed)")

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        self._legal = np.asarray(timestep.observation["legal"])[0]
        return super().act(timestep, mine)

    def choose(self, moves: list[int]) -> int:
        state = self._state(moves)
        legal = [int(action) for action in np.flatnonzero(self._legal)]
        words = {action: state.action_to_string(action) if state else str(action) for action in legal}
        self._tell(self.board())
        told = ", ".join(word if word == str(action) else f"{action}: {word}" for action, word in words.items())
        while True:
            try:
                typed = self._ask(f"your move ({told}; q to leave) > ").strip()
            except EOFError as error:
                raise Left from error
            if typed == "q":
                raise Left
            for action, word in words.items():
                if typed in (str(action), word):
                    return action
            self._tell(f"{typed!r} is no legal move")

    def board(self) -> str:
        """As OpenSpiel draws it, after the moves so far."""
        state = self._state(self._moves[0])
        return f"\n{state}\n" if state else f"moves so far: {self._moves[0]}"

    def _state(self, moves: list[int]) -> Any:
        if self._begin is None:
            return None
        state = self._begin()
        for move in moves:
            state.apply_action(move)
        return state


class Told(Trained):
    """An agent that says what it plays."""

    def __init__(self, run: runs.Run, tell: Callable[[str], None]) -> None:
        super().__init__(run)
        self._tell = tell

    def act(self, timestep: TimeStep, mine: np.ndarray) -> np.ndarray:
        action = super().act(timestep, mine)
        if mine[0]:
            self._tell(f"the agent plays {int(action[0])}")
        return action
