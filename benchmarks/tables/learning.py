"""Tables of the runs of every architecture: what they learn, and what is lost where they are killed."""

import json
from collections.abc import Callable
from functools import partial

from benchmarks.tables.common import RESULTS, Row, kills, rows_of, short, table

REFUSED = {
    ("ppo", "split"): "not there: it does not replay",
    ("vtrace", "split"): "not there: it does not replay",
    ("r2d2", "split"): "not there: it gives first priorities",
}


def _learning() -> list[Row]:
    """The summaries of learning runs, with their curves."""
    found = []
    for file in sorted((RESULTS / "learning").glob("*.jsonl")):
        first, *curve = map(json.loads, file.read_text("utf-8").splitlines())
        found.append(first["summary"] | {"curve": curve})
    return found


def _curves() -> str:
    lines = [
        [
            f"[{row['name']}](curves/{row['name']}.png)",
            f"`{row['command']}`" + (f", seeds 0 to {row['runs'] - 1}" if row.get("runs", 1) > 1 else ""),
            f"{row['eval_return_mean']:.4g}"
            + (f" ± {row['eval_return_std_over_members']:.2g}" if len(row["members"]) > 1 else ""),
            ", ".join(f"{value:.4g}" for value in row["members"]),
            "" if row["bar"] is None else f"{row['bar']:g}",
            _first(row),
            f"{row['seconds']:.0f}",
        ]
        for row in _learning()
    ]
    head = [
        "recipe and curve",
        "command",
        "mean ± spread over members",
        "members",
        "aim",
        "first there",
        "seconds for all",
    ]
    return table(head, lines)


def _first(row: Row) -> str:
    """When an evaluation first reached the aim, in the run that was soonest."""
    if row["bar"] is None:
        return ""
    there = [at for at in row["curve"] if (at.get("eval/return_mean") or -1e300) >= row["bar"]]
    if not there:
        return "never"
    at = min(there, key=lambda at: (at["env_steps"], at["seconds"]))
    return f"{short(at['env_steps'])} steps, {at['seconds']:.0f} s"


def _matrix(figures: bool = False) -> str:
    """What is measured of each agent on each architecture: returns, or links to the curves."""
    found = {row["name"]: row for row in _learning()}
    shown = {
        "CartPole": "cartpole", "CartPole without velocities": "blind-cartpole", "HalfCheetah": "halfcheetah",
        "Catch": "catch", "Memory of 20 steps": "memory", "MinAtar Breakout": "minatar-breakout", "Pong": "pong",
        "Breakout": "breakout", "Pendulum": "pendulum", "MountainCarContinuous": "mountaincar", "Hopper": "hopper",
        "LunarLander": "lunarlander", "BipedalWalker": "bipedalwalker", "Acrobot": "acrobot",
        "MountainCar": "mountain-car",
    }  # fmt: skip
    others: dict[tuple[str, str], list[str]] = {}  # what was looked at otherwise than by returns
    for row in rows_of("exact"):
        words = row["train"].split()
        place = words[words.index("--on") + 1] if "--on" in words else "anakin"
        told_so = f"{_task(words[3])} right in {row['median']:.0f} of {row['of']}"
        others.setdefault((words[2], place), []).append(told_so)
    for row in rows_of("matches"):
        agent, game, *untrained = row["cell"].split(", ")
        if not untrained:
            told_so = f"{_task(game)} {row['median']:.1%} against {row['opponent']}"
            others.setdefault((agent, "anakin"), []).append(told_so)

    def told(place: str, prefix: str, agent: str) -> str:
        cells = []
        for task, name in shown.items():
            if row := found.get(f"{prefix}{agent}-{name}"):
                seeds = len(row["members"])
                mean = row["eval_return_mean"]
                told_so = f"{task} {mean:.{0 if abs(mean) >= 10 else 1}f} on {seeds} seed{'s' * (seeds > 1)}"
                cells.append(told_so if figures else f"[{task}](docs/curves/{row['name']}.png)")
        if looked_at := others.get((agent, place), []):
            cells += looked_at if figures else ["[board games](docs/benchmarks.md#planning-solved-exactly)"]
        return ("; " if figures else ", ").join(cells) or REFUSED.get((agent, place), "not measured yet")

    places = {"anakin": "", "sebulba": "sebulba-", "seed": "seed-", "fleet": "fleet-", "split": "split-"}
    agents = ("ppo", "vtrace", "dqn", "r2d2", "muzero", "alphazero", "ddpg", "td3", "sac")
    lines = [[f"`{agent}`", *(told(*place, agent) for place in places.items())] for agent in agents]
    return table(["agent, greedy return after training" if figures else "agent", *places], lines)


def _task(environment: str) -> str:
    """The name of a game without where it comes from: connect four of pgx:connect_four."""
    return environment.partition(":")[2].replace("_", " ")


TABLES: dict[str, Callable[[], str]] = {
    "matrix": _matrix,
    "returns": partial(_matrix, figures=True),
    "curves": _curves,
    "kills": kills,
}
