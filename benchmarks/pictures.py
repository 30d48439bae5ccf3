"""Draw the pictures of docs/benchmarks.md that are made from the results that the repository keeps."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.tables.common import Row, rows_of
from benchmarks.tables.split import experiment
from boonta.experiments.charts import LIGHT

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "curves"


def main() -> list[Path]:
    """Draw all whose results are there; the files."""
    drawn = _stability() + _value_batch() + _sizes()
    for name, one in {"shapes": _shapes, "efficiency": _efficiency}.items():
        groups: dict[str, list[tuple[str, Row]]] = {}
        for row in rows_of(name):
            group, value = row["cell"].split("/")
            groups.setdefault(group, []).append((value, row))
        if not groups:
            continue
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
    rows = rows_of("stability")
    if not rows:
        return []
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


def _value_batch() -> list[Path]:
    """Return and losses by what was changed, one picture each, as in Figs. 7 to 9 of Brooks et al."""
    drawn, groups = [], dict[str, list[Row]]()
    for row in rows_of("value_batch"):
        groups.setdefault(row["cell"].split("/")[0], []).append(row)
    for group, chosen in groups.items():
        figure = Figure((10.8, 3.4), dpi=144, layout="constrained")
        FigureCanvasAgg(figure)
        for axes, what in zip(figure.subplots(1, 3), chosen[0]["curves"], strict=True):
            for row, colour in zip(chosen, LIGHT.lines, strict=False):
                mean, std = map(np.array, row["curves"][what])
                axes.plot(row["at"], mean, color=colour, label=row["cell"].split("/")[1])
                axes.fill_between(row["at"], mean - std, mean + std, color=colour, alpha=0.12, linewidth=0)
            axes.grid(color=LIGHT.grid, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.set_xlabel("seconds" if chosen[0]["axis"] == "seconds" else "environment steps")
            axes.set_title(what, fontsize=10)
        titles = {"equal-time": "value batch", "halfcheetah": "value batch", "value-updates": "value updates a step"}
        title = titles.get(group, group.replace("-", " "))
        axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8)
        drawn.append(PICTURES / f"{experiment(group)}.png")
        figure.savefig(drawn[-1])
    return drawn


def _sizes() -> list[Path]:
    """Updates/s by width, layers and processes, as in Fig. 4 of Brooks et al.; nothing where there are no results."""
    groups: dict[str, list[tuple[str, Row]]] = {}
    for row in rows_of("learning_speed"):
        if row["cell"] == "sizes":
            group, value = row["contestant"].rsplit(" ", 1)
            groups.setdefault(group, []).append((value, row))
    if not groups:
        return []
    figure = Figure((3.6 * len(groups), 3.2), dpi=144, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (group, rows) in zip(figure.subplots(1, len(groups)), groups.items(), strict=True):
        axes.set_title(group, fontsize=10)
        axes.grid(color=LIGHT.grid, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        _shapes(axes, rows)
        axes.set_ylabel("updates of the critics/s")
    figure.savefig(PICTURES / "split-sizes.png")
    return [PICTURES / "split-sizes.png"]


def _shapes(axes: Axes, rows: list[tuple[str, Row]]) -> None:
    medians = np.array([row["median"] for _, row in rows])
    spread = np.abs([[row["min"], row["max"]] for _, row in rows] - medians[:, None]).T
    axes.errorbar([name for name, _ in rows], medians, spread, color=LIGHT.lines[0], marker="o", capsize=3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps/s")


def _efficiency(axes: Axes, rows: list[tuple[str, Row]]) -> None:
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
