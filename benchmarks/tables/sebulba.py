"""Tables of Sebulba's benchmarks."""

from collections.abc import Callable
from functools import partial

from benchmarks.tables.common import rows_of, short, soak, table, where


def _pong() -> str:
    lines = [
        [
            row["cell"],
            row["contestant"].replace("_", " "),
            short(row["median"]),
            f"{row['of_limit']:.0%}" if row["contestant"] in ("ours", "sample_factory") else "",
            f"{row['of_peer']:.2f}" if row["of_peer"] and row["contestant"] == "ours" else "",
        ]
        for row in rows_of("pong")
    ]
    return table(["cell", "contestant", "steps/s", "of our parts in a row", "of Sample Factory"], lines) + where(
        rows_of("pong")
    )


def _shapes() -> str:
    rows = rows_of("shapes")
    lines = [[*row["cell"].split("/"), short(row["median"]), f"{row['of_first']:.2f}"] for row in rows]
    picture = "\n\n![Steps/s by shape](curves/shapes.png)" if rows else ""
    return table(["what", "how many", "steps/s", "of the first"], lines) + where(rows) + picture


def _efficiency() -> str:
    rows = rows_of("efficiency")
    lines = [
        [
            *row["cell"].split("/"),
            *(f"{row['curve_mean'][i]:.1f} ± {row['curve_std'][i]:.1f}" for i in (len(row["at"]) // 2 - 1, -1)),
            f"{row['median']:.1f} ({row['min']:.1f} to {row['max']:.1f})",
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    head = [
        "what",
        "how many",
        "return at half of the steps",
        "at the end",
        "evaluation (lowest to highest)",
        "seconds",
    ]
    picture = "\n\n![Return by width, depth and batch](curves/efficiency.png)" if rows else ""
    return table(head, lines) + where(rows) + picture


TABLES: dict[str, Callable[[], str]] = {
    "pong": _pong,
    "shapes": _shapes,
    "efficiency": _efficiency,
    "soak": partial(soak, "soak"),
}
