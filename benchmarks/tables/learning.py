"""Tables of the learning runs."""

import json
from collections.abc import Callable

from benchmarks.tables.common import RESULTS, Row, short, table


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


def _matrix() -> str:
    found = {row["name"]: row for row in _learning()}
    shown = {
        "CartPole": "cartpole", "CartPole without velocities": "blind-cartpole", "HalfCheetah": "halfcheetah",
        "Catch": "catch", "Memory of 20 steps": "memory", "MinAtar Breakout": "minatar-breakout", "Pong": "pong",
        "Breakout": "breakout",
    }  # fmt: skip

    def told(prefix: str, agent: str) -> str:
        cells = []
        for task, name in shown.items():
            if row := found.get(f"{prefix}{agent}-{name}"):
                seeds = len(row["members"])
                mean = row["eval_return_mean"]
                cells.append(f"{task} {mean:.{0 if abs(mean) >= 10 else 1}f} on {seeds} seed{'s' * (seeds > 1)}")
        return "; ".join(cells) or "not measured yet"

    places = {"anakin": "", "sebulba": "sebulba-", "seed": "seed-", "fleet": "fleet-"}
    agents = ("ppo", "vtrace", "dqn", "r2d2", "muzero")
    lines = [[f"`{agent}`", *(told(place, agent) for place in places.values())] for agent in agents]
    return table(["agent, greedy return after training", *places], lines)


TABLES: dict[str, Callable[[], str]] = {
    "matrix": _matrix,
    "curves": _curves,
}
