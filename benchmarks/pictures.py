"""Draw the pictures of docs/benchmarks.md that are made from the results that the repository keeps."""

import json
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from boonta.experiments.charts import LIGHT

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "curves"


def main() -> list[Path]:
    """Draw all whose results are there; the files."""
    drawn = _stability()
    for name, one in {"shapes": _shapes, "efficiency": _efficiency}.items():
        results = RESULTS / f"{name}.jsonl"
        if not results.is_file():
            continue
        groups: dict[str, list[tuple[str, dict]]] = {}
        for line in results.read_text("utf-8").splitlines():
            row = json.loads(line)
            group, value = row["cell"].split("/")
            groups.setdefault(group, []).append((value, row))
        figure = Figure((3.6 * len(groups), 3.2), dpi=144, layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (group, rows) in zip(figure.subplots(1, len(groups), sharey=True), groups.items(), strict=True):
            axes.set_title(group, fontsize=10)
            axes.grid(color=LIGHT.grid, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            one(axes, rows)
        drawn.append(PICTURES / f"{name}.png")
        figure.savefig(drawn[-1])
    return drawn


def _stability() -> list[Path]:
    """Returns over settings, the highest first, of each way of inferring; nothing where there are no results."""
    results = RESULTS / "stability.jsonl"
    if not results.is_file():
        return []
    rows = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    figure = Figure((5.2, 3.4), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, colour in zip(dict.fromkeys(row["contestant"] for row in rows), LIGHT.lines, strict=False):
        values = sorted((row["median"] for row in rows if row["contestant"] == name), reverse=True)
        axes.plot(range(1, len(values) + 1), values, color=colour, marker="o", markersize=3, label=name)
    axes.grid(color=LIGHT.grid, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("settings, the best first")
    axes.set_ylabel("return")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURES / "stability.png")
    return [PICTURES / "stability.png"]


def _shapes(axes: Axes, rows: list[tuple[str, dict]]) -> None:
    medians = np.array([row["median"] for _, row in rows])
    spread = np.abs([[row["min"], row["max"]] for _, row in rows] - medians[:, None]).T
    axes.errorbar([name for name, _ in rows], medians, spread, color=LIGHT.lines[0], marker="o", capsize=3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps/s")


def _efficiency(axes: Axes, rows: list[tuple[str, dict]]) -> None:
    for (value, row), colour in zip(rows, LIGHT.lines, strict=False):
        mean, std = np.array(row["curve_mean"]), np.array(row["curve_std"])
        axes.plot(row["at"], mean, color=colour, label=value)
        axes.fill_between(row["at"], mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")
    axes.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    main()
