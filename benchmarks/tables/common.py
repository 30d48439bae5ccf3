"""What tables share: the kept results, Markdown, numbers in words."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """The lines of a result file; none where it is not there."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    if not rows:
        return "Not measured yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where(rows: Sequence[Row]) -> str:
    """The machines and the versions that the rows are of."""
    if not rows:
        return ""
    machines = "; ".join(dict.fromkeys(_machine(row) for row in rows if "jax" in row["versions"]))
    commits = ", ".join(
        f"`{commit[:12]}{'+' * commit.endswith('+')}`" for commit in dict.fromkeys(row["commit"] for row in rows)
    )
    return f"\n\n{machines}; measured at {commits}."


def short(number: float) -> str:
    """A number in few digits: 12k, 3.45M."""
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number / 1e3:.0f}k" if number >= 1e4 else f"{number:.0f}"


def drills(name: str) -> str:
    """What drills counted, and what was learned after them."""
    rows = rows_of(name)
    lines = []
    for row in rows:
        told = ", ".join(
            f"{key.replace('_', ' ')} {int(value) if value == int(value) else f'{value:.3g}'}"
            for key, value in row["facts"].items()
            if isinstance(value, int | float)
        )
        lines.append([row["cell"], told, f"{row['median']:.0f}", f"{row['seconds_to_bar']:.0f}"])
    head = ["what happens", "what was counted", "return in evaluation after it", "seconds to that"]
    return table(head, lines) + where(rows)


def kills() -> str:
    """What runs that were killed had lost."""
    rows = rows_of("kills")
    lines = [
        [row["cell"], str(row["facts"]["kills"]), f"{row['median']:.2f}", f"{row['max']:.2f}",
         f"{row['facts']['due']:g} + {row['facts']['save']:.2f}"] for row in rows
    ]  # fmt: skip
    head = ["architecture", "kills", "lost, median s", "at most", "a checkpoint due, and its save, s"]
    return table(head, lines) + where(rows)


def soak(name: str) -> str:
    """What a long run held in its middle third and in its last."""
    rows = rows_of(name)
    lines = [
        [f"{row['cell']}, {row['unit']}", *(f"{row[key]:.0f}" for key in ("middle", "last", "max")),
         "yes" if row["flat"] else "NO"] for row in rows
    ]  # fmt: skip
    about = f"\n\n{rows[0]['minutes']:.0f} minutes." if rows else ""
    return table(["what", "middle third", "last third", "at most", "flat"], lines) + about + where(rows)


def _machine(row: Row) -> str:
    machine, versions = row["machine"], row["versions"]
    processor = machine.get("processor") or machine.get("cpu")
    there = f" and {machine['device']}" if machine.get("backend", "cpu") != "cpu" else ""
    return f"{processor}, {machine['cores']} cores{there}, JAX {versions['jax']}"
