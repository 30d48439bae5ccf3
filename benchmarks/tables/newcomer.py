"""Tables of the first minutes: what is learned without a recipe, and how long the first commands take."""

import math
import statistics
from collections.abc import Callable

from benchmarks.tables.common import Row, rows_of, table


def defaults() -> str:
    """Greedy returns of ours beside the peer's, mean ± standard deviation over seeds."""
    found = {tuple(row["cell"].rsplit("/", 1)): row for row in rows_of("defaults")}
    cells = list(dict.fromkeys(cell for cell, _ in found))
    lines = []
    for cell in cells:
        ours, theirs = (found.get((cell, who)) for who in ("ours", "sb3"))
        known = ours or theirs
        assert known
        lines.append([f"`{cell}`", f"{known['steps']:,}", *map(_told, (ours, theirs)), _apart(ours, theirs)])
    return table(
        ["agent and environment", "steps", "Boonta", "Stable-Baselines3", "difference in standard errors"], lines
    )


def times() -> str:
    """Seconds of the first commands, by an outside clock, medians."""
    lines = []
    for row in rows_of("times"):
        told = [x for x in row["told"] if x is not None]
        parts = {name: [x for x in values if x is not None] for name, values in row["parts"].items()}
        shown = ", ".join(f"{statistics.median(v):.1f} {name}" for name, v in parts.items() if v and max(v) >= 0.05)
        lines.append(
            [
                row["cell"],
                row["contestant"],
                f"{row['median']:.1f}",
                f"{statistics.median(told):.1f}" if told else "",
                shown,
            ]
        )
    return table(["command", "version", "seconds", "as it says", "of which"], lines)


def _told(row: Row | None) -> str:
    if row is None:
        return "not measured yet"
    spread = f" ± {statistics.stdev(row['values']):.1f}" if len(row["values"]) > 1 else ""
    return f"{row['mean']:.1f}{spread} ({len(row['values'])})"


def _apart(ours: Row | None, theirs: Row | None) -> str:
    if not (ours and theirs):
        return ""
    error = math.sqrt(sum(statistics.variance(row["values"]) / len(row["values"]) for row in (ours, theirs)))
    difference = ours["mean"] - theirs["mean"]
    return f"{difference / error:+.1f}" if error else ("0" if not difference else "none spread")


TABLES: dict[str, Callable[[], str]] = {"defaults": defaults, "times": times}
