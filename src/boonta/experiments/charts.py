"""The charts of a report: their colours, and drawing them as SVG for a page or together as a PNG."""

import io
import re
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from boonta.experiments import curves
from boonta.experiments.curves import EPISODE, EVAL, MAX_POINTS, SPEED, Run, Track, finite

matplotlib.rcdefaults()  # the current folder may hold a matplotlibrc of anybody's


class Ink(NamedTuple):
    """The colours of a chart."""

    text: str
    muted: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Ink(
    "#1c2128",
    "#68707c",
    "#e3e6ea",
    ("#2f6fde", "#e0791a", "#1a9a6c", "#cf3f5f", "#8457d6", "#1795ab", "#c74f9c", "#93703f"),
)
"""The colours on a light page, and of the PNG."""
DARK = Ink(
    "#e8eaee",
    "#99a1ad",
    "#2f353e",
    ("#6ea3ff", "#ffa04d", "#42c998", "#ff7a93", "#b394ff", "#45c3da", "#f088c8", "#cfa870"),
)
"""The colours on a dark page."""

# Colours that stand for CSS variables: the page swaps them, so that one chart serves light and dark.
_MARK = Ink("#010203", "#010204", "#010205", tuple(f"#0102{i:02x}" for i in range(0xF0, 0xF8)))
_VARIABLES = {_MARK.text: "text", _MARK.muted: "muted", _MARK.grid: "grid"} | {
    mark: f"line-{i}" for i, mark in enumerate(_MARK.lines)
}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_ROUND = [1, 2, 2.5, 5, 10]


class Chart(NamedTuple):
    """One pair of axes: which metrics, over what, drawn for every track."""

    title: str
    keys: tuple[str, ...]
    over: str

    def draw(self, axes: Axes, tracks: list[Track], ink: Ink, points: int = MAX_POINTS) -> None:
        """Draw it. With two metrics the first is the fainter line and the second has markers."""
        for track in tracks:
            for key in self.keys:
                faint = len(self.keys) > 1 and key == self.keys[0]
                self._draw(axes, track, key, ink, points, 0.45 if faint else 1.0)
        _dress(axes, ink)
        if self.over == "seconds":
            _clock_axis(axes, ink)
        else:
            axes.xaxis.set_major_formatter(EngFormatter(sep="", places=None))
            axes.set_xlabel("environment steps", color=ink.muted, fontsize=8)

    def _draw(self, axes: Axes, track: Track, key: str, ink: Ink, points: int, alpha: float) -> None:
        lines = [line for line in (curves.line(track, rows, key, self.over) for rows in track.members) if line[0].size]
        if not lines:
            return
        look: dict[str, Any] = {
            "color": ink.lines[track.style % len(ink.lines)],
            "linestyle": _DASHES[track.style // len(ink.lines) % len(_DASHES)],
        }
        if len(lines) > 1:
            for line in lines[:64]:
                axes.plot(
                    *curves.thin(*line, points // 4), linewidth=0.6, alpha=alpha * min(0.3, 3 / len(lines)), **look
                )
            x, mean, std = curves.spread(lines)
            shade = x[np.linspace(0, x.size - 1, min(x.size, points)).round().astype(int)]
            low, high = (np.interp(shade, x, edge) for edge in (mean - std, mean + std))
            axes.fill_between(shade, low, high, color=look["color"], alpha=0.16 * alpha, linewidth=0)
        else:
            x, mean = lines[0]
        x, mean = curves.thin(x, mean, points)
        marked = x.size == 1 or (x.size <= 60 and key == EVAL)
        size = {"marker": "o", "markersize": 3.2, "markeredgewidth": 0} if marked else {}
        axes.plot(x, mean, linewidth=1.5, alpha=alpha, solid_capstyle="round", **size, **look)


def _dress(axes: Axes, ink: Ink) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(ink.grid)
    axes.set_facecolor("none")
    axes.grid(axis="y", color=ink.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, labelcolor=ink.muted, pad=4)
    axes.margins(x=0.02, y=0.08)
    left, right = axes.get_xlim()
    if right > 0:
        axes.set_xlim(min(left, 0.0), right)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_ROUND))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=_ROUND))
    low, high = axes.get_ylim()
    if max(abs(low), abs(high)) >= 10_000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    elif high - low > 0 and max(abs(low), abs(high)) < 0.001:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1e}" if value else "0"))
    axes.yaxis.get_offset_text().set(color=ink.muted, fontsize=7)


def _clock_axis(axes: Axes, ink: Ink) -> None:
    longest = axes.get_xlim()[1]
    unit, size = next(((u, s) for u, s in (("hours", 3600), ("minutes", 60)) if longest >= 2 * s), ("seconds", 1))
    if size > 1:
        whole = MaxNLocator(5, steps=_ROUND).tick_values(0, longest / size)
        axes.set_xticks([tick * size for tick in whole if 0 <= tick * size <= longest])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axes.set_xlabel(f"{unit} of training", color=ink.muted, fontsize=8)


_MARGINS = (0.55, 0.45, 0.08, 0.08)  # inches around the axes: left, bottom, right, top


def svg(chart: Chart, tracks: list[Track], size: tuple[float, float], points: int, name: str) -> str:
    """The chart as an inline SVG whose colours are the page's variables."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "axes.formatter.useoffset": False}):
        figure = Figure(size)
        figure.patch.set_alpha(0)
        FigureCanvasSVG(figure)
        left, bottom, right, top = _MARGINS
        width, height = size  # a layout that looks for the place of each label would take most of the time
        place = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
        chart.draw(figure.add_axes(place), tracks, _MARK, points)
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    label = f'role="img" aria-label="{escape(chart.title)}"'
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda tag: f"<svg {tag[1]} {label}>", text)
    # Ids are unique in a file only, and a page holds many; coordinates come with far more digits than a screen has.
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for mark, variable in _VARIABLES.items():
        text = text.replace(mark, f"var(--{variable})")
    return re.sub(r">\s+<", "><", text).strip()


def learning(runs: list[Run]) -> list[Chart]:
    """The charts of learning: returns over environment steps, and over time."""
    there = [key for key in (EPISODE, EVAL) if any(finite(row.get(key)) for run in runs for row in run.rows)]
    names = {EPISODE: "Episode return", EVAL: "Evaluation return"}
    timed = any(finite(row.get("seconds")) for run in runs for row in run.rows)
    overs = ("env_steps", "seconds") if timed else ("env_steps",)
    tracks = curves.tracks(runs)
    if len(there) == 2 and len(tracks) == len(tracks[0].members) == 1:
        return [Chart("Return", (EPISODE, EVAL), over) for over in overs]
    return [Chart(names[key], (key,), over) for key in reversed(there) for over in overs]


def png(runs: list[Run]) -> bytes:
    """The charts of learning and of speed in one PNG, with a title and a legend."""
    tracks, charts = curves.tracks(runs), learning(runs)
    shown = charts[:]
    if len(charts) < 4 and any(finite(row.get(SPEED)) for run in runs for row in run.rows):
        shown.append(Chart("Steps per second", (SPEED,), charts[-1].over if charts else "env_steps"))
    columns = 2 if len(shown) > 3 else max(len(shown), 1)
    lines = -(-max(len(shown), 1) // columns)
    legend = min(len(tracks), 24) if len(tracks) > 1 else 2 * any(len(chart.keys) > 1 for chart in shown)
    width = 4.6 * max(columns, 2)
    per_line = max(1, int(width // 2.6))
    height = 0.75 + 3.0 * lines + 0.26 * -(-legend // per_line)
    figure = Figure((width, height), dpi=144, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12), facecolor="white")
    FigureCanvasAgg(figure)
    title = figure.suptitle(curves.title(runs), x=0.02, ha="left", fontsize=13, fontweight="bold", color=LIGHT.text)
    title.set_parse_math(False)
    for place, chart in enumerate(shown, start=1):
        axes = figure.add_subplot(lines, columns, place)
        chart.draw(axes, tracks, LIGHT)
        axes.set_title(chart.title, loc="left", fontsize=10, color=LIGHT.text, pad=8)
    if not shown:
        figure.text(0.5, 0.45, "no metrics yet", ha="center", color=LIGHT.muted, fontsize=12)
    if legend:
        handles, labels = _handles(tracks)
        box = figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=per_line,
            frameon=False,
            borderaxespad=1.2,
            fontsize=8,
            labelcolor=LIGHT.text,
        )
        for text in box.get_texts():
            text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _handles(tracks: list[Track]) -> tuple[list[Any], list[str]]:
    def line(track: Track, alpha: float = 1.0) -> Line2D:
        style: Any = _DASHES[track.style // len(LIGHT.lines) % len(_DASHES)]
        return Line2D([], [], color=LIGHT.lines[track.style % len(LIGHT.lines)], ls=style, lw=2, alpha=alpha)

    if len(tracks) == 1:
        return [line(tracks[0], 0.45), line(tracks[0])], ["training episodes", "evaluation"]
    rest = f" (and {len(tracks) - 24} more)" if len(tracks) > 24 else ""
    labels = [track.label for track in tracks[:24]]
    return [line(track) for track in tracks[:24]], [*labels[:-1], labels[-1] + rest]
