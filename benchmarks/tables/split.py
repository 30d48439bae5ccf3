"""Tables of split's benchmarks."""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.split.value_batch import ASKED
from benchmarks.tables.common import drills, rows_of, short, table, where

ONE = ", step by step"


def _axis(group: str, results: str = "value_batch", drawn: bool = True) -> str:
    """What came of the choices of one axis of the experiment, and its picture where it was drawn."""
    rows = [row for row in rows_of(results) if row["cell"].split("/")[0] == group]
    lines = [
        [
            row["cell"].split("/")[1],
            f"{sum(row['values']) / len(row['values']):.0f} ({row['min']:.0f} to {row['max']:.0f})",
            f"{sum(curve := row['curves']['return'][0]) / len(curve):.0f}",
            f"{row['diverged']:.0%}",
            f"{row['value_loss']:.3g}",
            f"{row['value_loss_variance']:.3g}",
            f"{(row['value_loss_variance'] / row['settings']['agent.value_batch']) ** 0.5:.2g}",
            f"{row['policy_loss']:.3g}",
            short(row["updates_per_second"]),
            short(row["env_steps"]),
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    head = [
        group.replace("-", " "), "return, mean (and range)", "mean of the curve", "diverged", "value loss",
        "its variance in a batch", "standard error of a batch's", "policy loss", "value updates/s",
        "environment steps", "seconds",
    ]  # fmt: skip
    picture = f"\n\n![{group.replace('-', ' ')}](curves/{experiment(group)}.png)" if rows and drawn else ""
    return table(head, lines) + where(rows) + picture


def experiment(group: str) -> str:
    """The name of the table and of the picture of an axis."""
    return f"experiment-{group}"


def _peers() -> str:
    rows = [row for row in rows_of("learning_speed") if "ours_of" in row]
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(row["cell"], []).append(row)
    lines = []
    for cell, those in cells.items():
        rates, of = {row["contestant"]: row["median"] for row in those}, those[0]["ours_of"]
        peers = [name for name in rates if name.split(",")[0] in ("sbx", "rejax")]
        ours, one, synchronous = (rates.get(f"ours{more}") for more in ("", ONE, f"{ONE}, synchronous"))
        lines.append(
            [
                cell,
                *(short(rate) if rate else "" for rate in (ours, one, synchronous)),
                "<br>".join(f"{name}: {short(rates[name])}" for name in peers),
                "<br>".join(f"{of[name]:.2f}" for name in peers),
                "<br>".join(f"{one / rates[name]:.2f}" for name in peers if one),
                short(rates["products"]),
                f"{of['products']:.2f}",
            ]
        )
    head = [
        "", "ours, steps/s", "step by step", "synchronous too", "peer", "ours of it", "step by step, of it",
        "products alone, updates/s", "ours of them",
    ]  # fmt: skip
    return table(head, lines) + where(rows)


def _forms() -> str:
    rows = [row for row in rows_of("learning_speed") if row["cell"] == "forms"]
    lines = [
        [row["contestant"], short(row["median"]), short(row["env_steps"]), f"{row['of_one_process']:.2f}"]
        for row in rows
    ]
    head = ["", "updates of the critics/s", "environment steps/s", "updates, of one process"]
    return table(head, lines) + where(rows)


def _sizes() -> str:
    rows = [row for row in rows_of("learning_speed") if row["cell"] == "sizes"]
    lines = [
        [row["contestant"], short(row["median"]), short(row["env_steps"]), f"{row['of_first']:.2f}"] for row in rows
    ]
    head = ["", "updates of the critics/s", "environment steps/s", "updates, of the first"]
    picture = "\n\n![Updates by size](curves/split-sizes.png)" if rows else ""
    return table(head, lines) + where(rows) + picture


def _carriers() -> str:
    rows = [row for row in rows_of("learning_speed") if row["cell"].startswith("carriers/")]
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    rates = {(row["cell"], row["contestant"]): row["median"] for row in rows}
    lines = [
        [cell.partition("/")[2], str(size), *(short(rates[cell, name]) for name in names)]
        for cell, size in dict.fromkeys((row["cell"], row["size"]) for row in rows)
    ]
    return table(["steps of", "bytes", *names], lines) + where(rows)


def _goal() -> str:
    rows = [row for row in rows_of("learning_speed") if row["cell"] == "goal"]
    lines = [
        [row["contestant"], f"{row['median']:.0f}{'' if row['reached'] else ' (not reached)'}", short(row["env_steps"]),
         short(row["env_steps"] / row["median"]), f"{row['curve'][-1]:.0f}"] for row in rows
    ]  # fmt: skip
    return table(["", "seconds of learning", "environment steps", "steps/s", "return"], lines) + where(rows)


TABLES: dict[str, Callable[[], str]] = {
    **{experiment(group): partial(_axis, group) for group in ASKED},
    "experiment-gpu": partial(_axis, "equal-time", "value_batch_gpu", drawn=False),
    "split-peers": _peers,
    "split-forms": _forms,
    "split-sizes": _sizes,
    "split-carriers": _carriers,
    "split-goal": _goal,
    "split-drills": partial(drills, "split_drills"),
    "redis-drills": partial(drills, "redis_drills"),
}
