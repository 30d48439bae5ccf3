"""Tables of the benchmarks of agents that plan, and of the fleet."""

from collections.abc import Callable
from functools import partial

from benchmarks.tables.common import Row, drills, rows_of, short, soak, table, where

COUNTS = ("wins", "draws", "losses")


def _selfplay() -> str:
    rows = rows_of("selfplay")
    lines = [
        [row["cell"], row["contestant"], str(row["devices"]), short(row["median"]), f"{row['of_plain']:.2f}",
         f"{row['idle_fraction']:.0%}"] for row in rows
    ]  # fmt: skip
    head = ["agent, game", "who", "devices", "moves/s", "of the plain loop", "idle acts"]
    return table(head, lines) + where(rows)


def _muzeros() -> str:
    rows = rows_of("muzeros")
    found = {(row["cell"], row["contestant"]): row for row in rows}
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        task, part = cell.split("/")
        ours, theirs = (found.get((cell, who)) for who in ("ours", task.split(", ")[0]))
        rates = [short(row and row["median"]) for row in (ours, theirs)]
        unit = "moves/s" if part == "play" else "updates/s"
        lines.append([task, unit, *rates, f"{ours['times']:.1f}" if ours and theirs else "-"])
    return table(["peer, task", "what", "ours", "theirs", "times"], lines) + where(rows)


def _exact() -> str:
    rows = rows_of("exact")
    lines = [
        [row["cell"], f"`{row['train']}`", f"{row['median']:.0f} of {row['of']}", f"{row['env_steps']:,}",
         f"{row['seconds']:.0f}"] for row in rows
    ]  # fmt: skip
    return table(["task", "command", "right", "steps", "seconds"], lines) + where(rows)


def _matches() -> str:
    rows = rows_of("matches")
    lines = [
        [row["cell"], f"{row['env_steps']:,}", row["opponent"], *(str(row[word]) for word in COUNTS),
         f"{row['median']:.1%}", _elo(row)] for row in rows
    ]  # fmt: skip
    return table(["agent, game", "steps trained", "opponent", *COUNTS, "score", "Elo, 95 %"], lines) + where(rows)


def _elo(row: Row) -> str:
    """The difference to the opponent and its interval, whose ends may be at infinity."""
    ends = {"elo_low": "-∞", "elo": "-∞" if row["score"] < 0.5 else "∞", "elo_high": "∞"}
    low, middle, high = (sign if row[key] is None else f"{row[key]:+.0f}" for key, sign in ends.items())
    return f"{middle} ({low} to {high})"


def _positions() -> str:
    rows = rows_of("positions")
    lines = [
        [
            row["contestant"],
            str(row["simulations"]),
            f"{row['env_steps']:,}",
            f"{row['median']:.1%}",
            f"{row['by_chance']:.1%}",
        ]
        for row in rows
    ]
    return table(["agent", "simulations", "steps trained", "right moves", "by chance"], lines) + where(rows)


def _ablations() -> str:
    rows = rows_of("ablations")
    tasks = list(dict.fromkeys(row["cell"] for row in rows))
    found = {(row["contestant"], row["cell"]): row for row in rows}
    lines = [
        [variant, *(_spread(found[variant, task]) for task in tasks)]
        for variant in dict.fromkeys(who for who, _ in found)
    ]
    return table(["variant", *tasks], lines) + where(rows)


def _spread(row: Row) -> str:
    values = row["values"]
    mean = sum(values) / len(values)
    return f"{mean:.3g} ({min(values):.3g} to {max(values):.3g})"


def _muzero_pong() -> str:
    rows = rows_of("muzero_pong")
    lines = [[*row["cell"].split("/"), short(row["median"]), f"{row['of_first']:.2f}"] for row in rows]
    return table(["what", "how many", "steps/s", "of the first"], lines) + where(rows)


def _overhead() -> str:
    rows = rows_of("overhead")
    lines = [[row["cell"], row["contestant"], short(row["median"]), f"{row['of_sebulba']:.2f}"] for row in rows]
    return table(["task", "who", "steps/s", "of Sebulba"], lines) + where(rows)


TABLES: dict[str, Callable[[], str]] = {
    "selfplay": _selfplay,
    "muzeros": _muzeros,
    "exact": _exact,
    "matches": _matches,
    "positions": _positions,
    "ablations": _ablations,
    "muzero-pong": _muzero_pong,
    "overhead": _overhead,
    "fleet-drills": partial(drills, "fleet_drills"),
    "fleet-soak": partial(soak, "fleet_soak"),
}
