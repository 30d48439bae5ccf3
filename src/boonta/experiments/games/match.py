"""A match: games with sides swapped, and what they say about strength."""

import math
from typing import Any

import numpy as np

from boonta import envs
from boonta.core.environment import Environment
from boonta.core.host import Batch, Host, Workers
from boonta.core.types import LAST
from boonta.envs.served import serve
from boonta.experiments import runs
from boonta.experiments.games.players import Followed, Player, Trained, player

Z = 1.96  # of an interval of 95 %
RUN_OPENING = 4  # random moves before two runs play: enough that few games of theirs are the same


def match(run: runs.Run, opponent: str, games: int = 200, opening: int | None = None, seed: int = 0) -> dict[str, Any]:
    """A run's agent against an opponent, each opening played twice with sides swapped.

    Args:
        run: opened.
        opponent: see `players.player`.
        games: an even number.
        opening: moves at random before they play; None for as many as the opponent needs.
        seed: of the openings and of the opponent's chance.

    Returns:
        `wins`, `draws`, `losses` of the run, `games`, `score` (a win is 1, a draw a half), `elo` and the ends of its
        95 % interval, `elo_low` and `elo_high` (None where infinite), `env_steps`, `out` and `opponent`.

    Raises:
        ValueError: an opponent or a number that cannot be, or no game of two.
    """
    if games < 2 or games % 2:
        raise ValueError(f"--games must be an even number, at least 2, got {games}")
    game = run.config.env
    other = player(opponent, game, seed)
    if isinstance(other, Trained) and other.run.config.env != game:
        raise ValueError(f"{opponent} plays {other.run.config.env}, not {game}")
    if opening is None:
        opening = RUN_OPENING if isinstance(other, Trained) else 0
    if opening < 0:
        raise ValueError(f"--opening must be at least 0, got {opening}")
    mine = rules(run)
    others = rules(other.run) if isinstance(other, Trained) else {} if isinstance(other, Followed) else mine
    if mine != others:  # who follows a game knows it as it comes
        raise ValueError(f"{opponent} plays {game} with the settings {others}, and the run with {mine}")
    settings = dict(run.config.env_settings) | (other.run.config.env_settings if isinstance(other, Trained) else {})
    totals = played(table(game, settings), (Trained(run), other), games, opening, seed)
    counts = {"wins": int((totals > 0).sum()), "draws": int((totals == 0).sum()), "losses": int((totals < 0).sum())}
    strength = elo(counts["wins"], counts["draws"], counts["losses"])
    about = {"env_steps": run.facts["env_steps"], "opponent": opponent, "out": str(run.folder)}
    return counts | {"games": games} | strength | about


def table(game: str, settings: dict[str, Any]) -> Host:
    """Where a game is played.

    Raises:
        ValueError: it is not made for boards.
    """
    made = envs.make(game, **settings)
    host = serve(made) if isinstance(made, Environment) else made
    if not (isinstance(host.spec.observation, dict) and "legal" in host.spec.observation):
        raise ValueError(f"matches are of games with legal moves for two players, and {game} is none")
    return host


def played(host: Host, sides: tuple[Player, Player], games: int, opening: int = 0, seed: int = 0) -> np.ndarray:
    """Play games side by side.

    Args:
        host: the game.
        sides: the first player moves first in games of even number, the second in those of odd number.
        games: how many.
        opening: moves at random first; games 2 i and 2 i + 1 have the same.
        seed: of those.

    Returns:
        float [games], the sum of the rewards of the first player, less those of the second.

    Raises:
        ValueError: the turn never passes.
    """
    for one in sides:
        one.begin(games)
    batch: Batch = host.make(np.arange(games), seed, 0, Workers("serial"))
    shared = np.random.default_rng([seed, 1])
    timestep = batch.reset()
    mover, on, total = np.arange(games) % 2, np.ones(games, bool), np.zeros(games)
    passed = False
    for ply in range(100_000):
        actions = [one.act(timestep, on & (mover == i) & (ply >= opening)) for i, one in enumerate(sides)]
        legal = np.asarray(timestep.observation["legal"])
        action = np.where(on, np.where(mover == 0, *actions), np.argmax(legal, axis=1))  # others go on, unseen
        if ply < opening:
            luck = shared.random((games + 1) // 2)
            for i in np.flatnonzero(on):
                choices = np.flatnonzero(legal[i])
                action[i] = choices[int(luck[i // 2] * len(choices))]
        for one in sides:
            one.played(action, on)
        timestep = batch.step(action.astype(np.int32))
        total += np.where(on, np.where(mover == 0, 1.0, -1.0) * np.asarray(timestep.reward), 0.0)
        passed |= bool(np.any(np.asarray(timestep.discount)[on] < 0))
        mover = np.where(np.asarray(timestep.discount) < 0, 1 - mover, mover)
        on &= np.asarray(timestep.step_type) != LAST
        if not on.any() or (not passed and not on.all()):
            break
    batch.close()
    if not passed:
        raise ValueError(f"{host.spec.name} is no game for two: a game ended and the turn had never passed")
    return total


def rules(run: runs.Run) -> dict[str, Any]:
    """The settings of a run's game that change how it is played."""
    return {key: value for key, value in run.config.env_settings.items() if key != "model"}


def elo(wins: int, draws: int, losses: int) -> dict[str, float | None]:
    """The score, the difference in Elo that goes with it, and that of the ends of Wilson's interval of 95 %.

    A draw counts as a half, which makes the interval wider than need be. None stands for infinity.
    """
    n = wins + draws + losses
    score = (wins + draws / 2) / n
    middle = (score + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(score * (1 - score) / n + Z**2 / (4 * n**2))
    low = 0.0 if score == 0 else max(middle - half, 0.0)  # exactly, whatever rounding says
    high = 1.0 if score == 1 else min(middle + half, 1.0)
    return {"score": score, "elo": _elo(score), "elo_low": _elo(low), "elo_high": _elo(high)}


def _elo(score: float) -> float | None:
    return None if score <= 0 or score >= 1 else -400 * math.log10(1 / score - 1)
