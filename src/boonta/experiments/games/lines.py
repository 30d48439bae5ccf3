"""Every line of play: an agent against all that an opponent can do, from both sides, in games small enough for that."""

from typing import Any

import numpy as np

from boonta.core.host import Host, Workers
from boonta.core.types import LAST
from boonta.experiments import runs
from boonta.experiments.games.match import table
from boonta.experiments.games.players import Trained

MOST = 100_000  # lines


def every_line(run: runs.Run) -> dict[str, Any]:
    """A run's agent, greedy, against every reply there is.

    Returns:
        `wins`, `draws` and `losses`, of lines, for the run; `lines`, their sum; and of each side, as `first` and
        `second`, the same three.

    Raises:
        ValueError: no game of two, or one with too many lines.
    """
    host = table(run.config.env, dict(run.config.env_settings))
    sides = {name: _lines(host, Trained(run), side) for side, name in enumerate(("first", "second"))}
    words = ("wins", "draws", "losses")
    counts = {word: sum(side[word] for side in sides.values()) for word in words}
    about = {"env_steps": run.facts["env_steps"], "out": str(run.folder)}
    return counts | {"lines": sum(counts.values())} | sides | about


def _lines(host: Host, agent: Trained, side: int) -> dict[str, int]:
    """Of the games in which the agent moves first (0) or second (1)."""
    counts = {"wins": 0, "draws": 0, "losses": 0}
    open_lines: list[tuple[int, ...]] = [()]  # the opponent's moves so far
    while open_lines:
        if len(open_lines) > MOST:
            raise ValueError(f"{host.spec.name} has more than {MOST} lines of play: too many to look at every one")
        replies, totals = _played(host, agent, side, open_lines)
        for total in totals[[not reply for reply in replies]]:
            counts["wins" if total > 0 else "losses" if total < 0 else "draws"] += 1
        open_lines = [(*line, move) for line, reply in zip(open_lines, replies, strict=True) for move in reply]
    return counts


def _played(host: Host, agent: Trained, side: int, lines: list[tuple[int, ...]]) -> tuple[list[list[int]], np.ndarray]:
    """Play lines until the opponent has no more moves: its legal moves then, none where a game is over; and totals."""
    count = len(lines)
    width = 1 << (count - 1).bit_length()  # few widths, so that little is compiled
    lines = lines + [lines[-1]] * (width - count)
    agent.begin(width)
    batch = host.make(np.arange(width), 0, 0, Workers("serial"))
    timestep = batch.reset()
    mover, on, used = np.zeros(width, int), np.ones(width, bool), np.zeros(width, int)
    total, replies = np.zeros(width), [[] for _ in range(width)]
    while on.any():
        action = np.array(agent.act(timestep, on))
        legal = np.asarray(timestep.observation["legal"])
        for i in np.flatnonzero(on & (mover != side)):
            if used[i] == len(lines[i]):
                replies[i] = [int(move) for move in np.flatnonzero(legal[i])]
                on[i] = False
            else:
                action[i] = lines[i][used[i]]
                used[i] += 1
        timestep = batch.step(np.where(on, action, np.argmax(legal, axis=1)).astype(np.int32))
        total += np.where(on, np.where(mover == side, 1.0, -1.0) * np.asarray(timestep.reward), 0.0)
        mover = np.where(np.asarray(timestep.discount) < 0, 1 - mover, mover)
        on &= np.asarray(timestep.step_type) != LAST
    batch.close()
    return replies[:count], total[:count]
