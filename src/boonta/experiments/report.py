"""What happened in a run, or how several compare: one HTML page that needs no network, and a PNG beside it."""

import io
import math
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
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

from boonta.experiments.files import read_json, write_bytes, write_text
from boonta.experiments.metrics import read_metrics
from boonta.experiments.progress import short

MAX_POINTS = 2000
"""Points a line keeps at most."""
MAX_CHARTS = 48
"""Small charts a page shows at most."""

EPISODE, EVAL, SPEED = "episode/return_mean", "eval/return_mean", "steps_per_second"
_AXES = ("env_steps", "frames", "seconds", "updates", "member", "member_name")


def write_report(folders: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the report of one run, or the comparison of several, and its PNG (same name) beside it.

    Args:
        folders: run folders, of any status, also those still running or without metrics.
        out: the HTML file; by default `report.html` in the folder of a single run, else in the current folder.

    Returns:
        The path of the HTML file.

    Raises:
        ValueError: no folder was given, one is not a run folder or holds a broken file, or `out` is not an .html file.
    """
    if not folders:
        raise ValueError("report needs at least one run folder, got none")
    single = len(folders) == 1
    out = Path(out) if out else (Path(folders[0]) if single else Path.cwd()) / "report.html"
    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"out must end in .html, got {out}")
    runs = _load([Path(folder) for folder in folders])
    page, picture = _page(runs), _png(runs)
    write_bytes(out.with_suffix(".png"), picture)
    write_text(out, page)
    return out


# --- runs ------------------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    name: str
    config: dict[str, Any]
    info: dict[str, Any]
    rows: list[dict[str, Any]]


class _Track(NamedTuple):
    """One coloured line: the members of a run that differ in nothing but their seed."""

    label: str
    style: int
    members: list[list[dict[str, Any]]]
    clock: tuple[np.ndarray, np.ndarray]
    """Environment steps and the seconds at which they were reached, for rows that do not say."""


def _load(folders: list[Path]) -> list[_Run]:
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        root = os.path.commonpath([folder.resolve().parent for folder in folders])
        names = [os.path.relpath(folder.resolve(), root) for folder in folders]
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Path, name: str) -> _Run:
    if not (folder / "run.json").is_file():
        raise ValueError(f"not a run folder: {folder} (it has no run.json)")
    info = read_json(folder / "run.json")
    if not isinstance(info, dict):
        raise ValueError(f"{folder / 'run.json'} must hold a JSON object, got {type(info).__name__}")
    config = folder / "config.toml"
    try:
        settings = tomllib.loads(config.read_text("utf-8")) if config.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{config} is not TOML: {error}") from error
    return _Run(name, settings, info, read_metrics(folder))


def _tracks(runs: list[_Run]) -> list[_Track]:
    tracks: list[_Track] = []
    for run in runs:
        groups: dict[str, dict[Any, list[dict[str, Any]]]] = {}
        for row in run.rows:
            parts = str(row.get("member_name") or "").split(",")
            label = ", ".join(part.strip() for part in parts if part and not part.strip().startswith("seed="))
            groups.setdefault(label, {}).setdefault(row.get("member"), []).append(row)
        timed = [(row["env_steps"], row["seconds"]) for row in run.rows if {"env_steps", "seconds"} <= row.keys()]
        clock = np.array(sorted((s, t) for s, t in timed if _finite(s) and _finite(t)), float).reshape(-1, 2).T
        for group, members in groups.items():
            if len(members) > 1:  # rows of no member (the mean over all, say) would count twice
                members.pop(None, None)
            names = [run.name] * (len(runs) > 1 or not group) + [group] * bool(group)
            tracks.append(_Track(" · ".join(names), len(tracks), list(members.values()), (clock[0], clock[1])))
    return tracks


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _named(run: _Run, kind: str) -> str:
    """The name of the run's agent, env or architecture."""
    table = run.config.get(kind)
    places = (run.config.get("run", {}), {kind: table.get("name")} if isinstance(table, dict) else {}, run.info)
    return str(next((place[kind] for place in places if place.get(kind)), "–"))


def _final(run: _Run, key: str, result: str) -> tuple[float | None, float | None]:
    """Mean and spread of the run's last word on `key`: of its result, else over the members' last rows."""
    done = run.info.get("result") or {}
    mean, std = (np.atleast_1d(np.asarray(done.get(f"{result}_{x}"), float)) for x in ("mean", "std"))
    if mean.size == 1 and np.isfinite(mean[0]):
        return float(mean[0]), float(std[0]) if std.size == 1 and np.isfinite(std[0]) else None
    last = {row.get("member"): row[key] for row in run.rows if _finite(row.get(key))}
    return _mean_and_std(list(last.values()))


def _mean_and_std(values: list[float]) -> tuple[float | None, float | None]:
    """None where there are too few values for it, and no spread that is but rounding."""
    if not values:
        return None, None
    mean, std = float(np.mean(values)), float(np.std(values))
    return mean, None if len(values) == 1 else std if std > 1e-9 * abs(mean) else 0.0


# --- lines -----------------------------------------------------------------------------------------------------------


def _line(track: _Track, rows: list[dict[str, Any]], key: str, over: str) -> tuple[np.ndarray, np.ndarray]:
    """Where `key` is a finite number: environment steps or seconds, ascending, and its values."""
    steps, values, seconds = [], [], []
    for row in rows:
        if _finite(row.get(key)) and (_finite(row.get("env_steps")) or _finite(row.get("seconds"))):
            steps.append(row["env_steps"] if _finite(row.get("env_steps")) else np.nan)
            seconds.append(row["seconds"] if _finite(row.get("seconds")) else np.nan)
            values.append(row[key])
    x, y = np.array(seconds if over == "seconds" else steps, float), np.array(values, float)
    if over == "seconds" and track.clock[0].size:
        x = np.where(np.isnan(x), np.interp(np.array(steps, float), *track.clock), x)
    kept = np.isfinite(x)
    x, y = x[kept], y[kept]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _spread(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation over lines, at every place one of them has a point, among those that reach there."""
    x = np.unique(np.concatenate([line[0] for line in lines]))
    if x.size > MAX_POINTS:
        x = x[np.linspace(0, x.size - 1, MAX_POINTS).round().astype(int)]
    y = np.stack([np.interp(x, *line, left=np.nan, right=np.nan) for line in lines])
    count = np.isfinite(y).sum(axis=0)
    x, y, count = x[count > 0], y[:, count > 0], count[count > 0]
    mean = np.nansum(y, axis=0) / count
    return x, mean, np.sqrt(np.nansum((y - mean) ** 2, axis=0) / count)


def _thin(x: np.ndarray, y: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `points` points of a line: the lowest and highest of each stretch, so that no spike is lost."""
    if x.size <= points:
        return x, y
    kept = {0, x.size - 1}
    for stretch in np.array_split(np.arange(x.size), points // 2 - 1):
        kept |= {int(stretch[np.argmin(y[stretch])]), int(stretch[np.argmax(y[stretch])])}
    index = np.array(sorted(kept))
    return x[index], y[index]


# --- charts ----------------------------------------------------------------------------------------------------------


class _Ink(NamedTuple):
    """The colours of a chart."""

    text: str
    muted: str
    grid: str
    lines: tuple[str, ...]


_LIGHT = _Ink(
    "#1c2128",
    "#68707c",
    "#e3e6ea",
    ("#2f6fde", "#e0791a", "#1a9a6c", "#cf3f5f", "#8457d6", "#1795ab", "#c74f9c", "#93703f"),
)
_DARK = _Ink(
    "#e8eaee",
    "#99a1ad",
    "#2f353e",
    ("#6ea3ff", "#ffa04d", "#42c998", "#ff7a93", "#b394ff", "#45c3da", "#f088c8", "#cfa870"),
)
# Colours that stand for CSS variables: the page swaps them, so that one chart serves light and dark.
_MARK = _Ink("#010203", "#010204", "#010205", tuple(f"#0102{i:02x}" for i in range(0xF0, 0xF8)))
_VARIABLES = {_MARK.text: "text", _MARK.muted: "muted", _MARK.grid: "grid"} | {
    mark: f"line-{i}" for i, mark in enumerate(_MARK.lines)
}
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_BORDERS = ("solid", "dashed", "dotted")
_ROUND = [1, 2, 2.5, 5, 10]


class _Chart(NamedTuple):
    """One pair of axes: which metrics, over what, drawn for every track."""

    title: str
    keys: tuple[str, ...]
    over: str

    def draw(self, axes: Axes, tracks: list[_Track], ink: _Ink, points: int = MAX_POINTS) -> None:
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

    def _draw(self, axes: Axes, track: _Track, key: str, ink: _Ink, points: int, alpha: float) -> None:
        lines = [line for line in (_line(track, rows, key, self.over) for rows in track.members) if line[0].size]
        if not lines:
            return
        look: dict[str, Any] = {
            "color": ink.lines[track.style % len(ink.lines)],
            "linestyle": _DASHES[track.style // len(ink.lines) % len(_DASHES)],
        }
        if len(lines) > 1:
            for line in lines[:64]:
                axes.plot(*_thin(*line, points // 4), linewidth=0.6, alpha=alpha * min(0.3, 3 / len(lines)), **look)
            x, mean, std = _spread(lines)
            shade = x[np.linspace(0, x.size - 1, min(x.size, points)).round().astype(int)]
            low, high = (np.interp(shade, x, edge) for edge in (mean - std, mean + std))
            axes.fill_between(shade, low, high, color=look["color"], alpha=0.16 * alpha, linewidth=0)
        else:
            x, mean = lines[0]
        x, mean = _thin(x, mean, points)
        marked = x.size == 1 or (x.size <= 60 and key == EVAL)
        size = {"marker": "o", "markersize": 3.2, "markeredgewidth": 0} if marked else {}
        axes.plot(x, mean, linewidth=1.5, alpha=alpha, solid_capstyle="round", **size, **look)


def _dress(axes: Axes, ink: _Ink) -> None:
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


def _clock_axis(axes: Axes, ink: _Ink) -> None:
    longest = axes.get_xlim()[1]
    unit, size = next(((u, s) for u, s in (("hours", 3600), ("minutes", 60)) if longest >= 2 * s), ("seconds", 1))
    if size > 1:
        whole = MaxNLocator(5, steps=_ROUND).tick_values(0, longest / size)
        axes.set_xticks([tick * size for tick in whole if 0 <= tick * size <= longest])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axes.set_xlabel(f"wall-clock {unit}", color=ink.muted, fontsize=8)


def _svg(chart: _Chart, tracks: list[_Track], size: tuple[float, float], points: int, name: str) -> str:
    """The chart as an inline SVG whose colours are the page's variables."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "axes.formatter.useoffset": False}):
        figure = Figure(size, layout="constrained")
        figure.patch.set_alpha(0)
        FigureCanvasSVG(figure)
        chart.draw(figure.add_subplot(), tracks, _MARK, points)
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


def _learning(runs: list[_Run]) -> list[_Chart]:
    """The charts of learning: returns over environment steps, and over time."""
    there = [key for key in (EPISODE, EVAL) if any(_finite(row.get(key)) for run in runs for row in run.rows)]
    names = {EPISODE: "Episode return", EVAL: "Evaluation return"}
    timed = any(_finite(row.get("seconds")) for run in runs for row in run.rows)
    overs = ("env_steps", "seconds") if timed else ("env_steps",)
    tracks = _tracks(runs)
    if len(there) == 2 and len(tracks) == len(tracks[0].members) == 1:
        return [_Chart("Return", (EPISODE, EVAL), over) for over in overs]
    return [_Chart(names[key], (key,), over) for key in reversed(there) for over in overs]


def _png(runs: list[_Run]) -> bytes:
    tracks, charts = _tracks(runs), _learning(runs)
    shown = charts[:]
    if len(charts) < 4 and any(_finite(row.get(SPEED)) for run in runs for row in run.rows):
        shown.append(_Chart("Steps per second", (SPEED,), charts[-1].over if charts else "env_steps"))
    columns = 2 if len(shown) > 3 else max(len(shown), 1)
    lines = -(-max(len(shown), 1) // columns)
    legend = min(len(tracks), 24) if len(tracks) > 1 else 2 * any(len(chart.keys) > 1 for chart in shown)
    width = 4.6 * max(columns, 2)
    per_line = max(1, int(width // 2.6))
    height = 0.75 + 3.0 * lines + 0.26 * -(-legend // per_line)
    figure = Figure((width, height), dpi=144, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12), facecolor="white")
    FigureCanvasAgg(figure)
    title = figure.suptitle(_title(runs), x=0.02, ha="left", fontsize=13, fontweight="bold", color=_LIGHT.text)
    title.set_parse_math(False)
    for place, chart in enumerate(shown, start=1):
        axes = figure.add_subplot(lines, columns, place)
        chart.draw(axes, tracks, _LIGHT)
        axes.set_title(chart.title, loc="left", fontsize=10, color=_LIGHT.text, pad=8)
    if not shown:
        figure.text(0.5, 0.45, "no metrics yet", ha="center", color=_LIGHT.muted, fontsize=12)
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
            labelcolor=_LIGHT.text,
        )
        for text in box.get_texts():
            text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _handles(tracks: list[_Track]) -> tuple[list[Any], list[str]]:
    def line(track: _Track, alpha: float = 1.0) -> Line2D:
        style: Any = _DASHES[track.style // len(_LIGHT.lines) % len(_DASHES)]
        return Line2D([], [], color=_LIGHT.lines[track.style % len(_LIGHT.lines)], ls=style, lw=2, alpha=alpha)

    if len(tracks) == 1:
        return [line(tracks[0], 0.45), line(tracks[0])], ["training episodes", "evaluation"]
    rest = f" (and {len(tracks) - 24} more)" if len(tracks) > 24 else ""
    labels = [track.label for track in tracks[:24]]
    return [line(track) for track in tracks[:24]], [*labels[:-1], labels[-1] + rest]


# --- the page --------------------------------------------------------------------------------------------------------


def _page(runs: list[_Run]) -> str:
    tracks = _tracks(runs)
    body = [
        _header(runs),
        *(_cause(run) for run in runs if run.info.get("cause")),
        _summary(runs),
        _curves(runs, tracks),
        _population(runs, tracks),
        _others(runs, tracks),
        _time(runs),
        _settings(runs),
        _surroundings(runs),
    ]
    title = escape(_title(runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title} – Boonta</title>\n<style>{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _title(runs: list[_Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    return " · ".join(_named(runs[0], kind) for kind in ("agent", "env", "architecture"))


def _section(title: str, *content: str, note: str = "") -> str:
    if not any(content):
        return ""
    aside = f'<span class="note">{escape(note)}</span>' if note else ""
    return f"<section><h2>{escape(title)}{aside}</h2>{''.join(content)}</section>"


def _header(runs: list[_Run]) -> str:
    if len(runs) > 1:
        names = sorted({_named(run, "env") for run in runs})
        return f"<header><h1>{_title(runs)}</h1><p>on {escape(', '.join(names))}</p></header>"
    run = runs[0]
    heading = "<i>·</i>".join(f"<span>{escape(_named(run, kind))}</span>" for kind in ("agent", "env", "architecture"))
    tiles = "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><small>{note}</small></div>" for label, value, note in _tiles(run)
    )
    return f'<header><h1>{heading}</h1><p>{_badge(run)} {escape(run.name)}</p></header><dl class="tiles">{tiles}</dl>'


def _tiles(run: _Run) -> list[tuple[str, str, str]]:
    """The four numbers one looks for first: label, value and remark, all HTML."""
    result = run.info.get("result") or {}
    mean, std = _final(run, EVAL, "eval_return")
    label, key = ("Evaluation return", EVAL) if mean is not None else ("Episode return", EPISODE)
    if mean is None:
        mean, std = _final(run, EPISODE, "episode_return")
    episodes = result.get("eval_episodes")
    note = (
        f"{_number(episodes)} episodes"
        if episodes and key == EVAL
        else "latest training episodes"
        if mean is not None
        else ""
    )
    members = {row["member"] for row in run.rows if row.get("member") is not None}
    if len(members) > 1:
        note = f"{len(members)} members" + (f", {note}" if note else "")
    spread = f" <i>± {_number(std)}</i>" if std is not None else ""
    goal = run.config.get("run", {}).get("steps")
    steps, seconds = _reached(run, "env_steps"), _reached(run, "seconds")
    compiling = result.get("compile_seconds")
    return [
        (label, _number(mean) + spread, note),
        ("Environment steps", _short(steps), f"of {_short(goal)}" if _finite(goal) and goal != steps else ""),
        ("Wall-clock", _clock(seconds), f"{_clock(compiling)} compiling" if _finite(compiling) else ""),
        ("Speed", _short(_speed(run)), "environment steps per second"),
    ]


def _reached(run: _Run, key: str) -> float | None:
    """How far the run got, in environment steps, seconds or updates."""
    value = (run.info.get("result") or {}).get(key)
    return value if _finite(value) else max((row[key] for row in run.rows if _finite(row.get(key))), default=None)


def _speed(run: _Run) -> float | None:
    value = (run.info.get("result") or {}).get(SPEED)
    if _finite(value):
        return value
    speeds = [row[SPEED] for row in run.rows if _finite(row.get(SPEED))]
    return float(np.median(speeds)) if speeds else None


def _badge(run: _Run) -> str:
    status = str(run.info.get("status") or "unknown")
    known = status if status in ("done", "running", "failed", "interrupted") else "unknown"
    return f'<span class="badge {known}">{escape(status)}</span>'


def _cause(run: _Run) -> str:
    return f"<aside><b>{escape(run.name)} died of</b><pre>{escape(str(run.info['cause']))}</pre></aside>"


def _facts(run: _Run) -> dict[str, str]:
    """The line of a run in the summary: HTML by label."""
    info, devices = run.info, run.info.get("devices") or {}
    mean, std = _final(run, EVAL, "eval_return")
    kind = devices.get("kind") or devices.get("platform")
    return {
        "Status": _badge(run),
        **{kind.capitalize(): escape(_named(run, kind)) for kind in ("agent", "env", "architecture")},
        "Evaluation": _with_spread(mean, std),
        "Steps": _number(_reached(run, "env_steps")),
        "Time": _clock(_reached(run, "seconds")),
        "Steps/s": _number(_speed(run)),
        "Updates": _number(_reached(run, "updates")),
        "Seed": _value(info.get("seed")),
        "Devices": f"{escape(str(devices.get('count', 1)))} × {escape(str(kind))}" if kind else "–",
        "Commit": f"<code>{escape(str(info['commit'])[:8])}</code>" if info.get("commit") else "–",
    }


def _summary(runs: list[_Run]) -> str:
    facts = [_facts(run) for run in runs]
    if len(runs) == 1:
        items = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts[0].items())
        return _section("Summary", f'<dl class="facts">{items}</dl>')
    rows = [[escape(run.name), *fact.values()] for run, fact in zip(runs, facts, strict=True)]
    return _section("Summary", _table(["Run", *facts[0]], rows, right=(5, 6, 7, 8, 9, 10)))


def _table(head: Iterable[str], rows: list[list[str]], right: tuple[int, ...] = (), mark: bool = False) -> str:
    """A table of ready HTML cells, with `right` the columns of numbers; `mark` tints the cells after the first."""

    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(f"<{tag}{' class=number' if i in right else ''}>{cell}</{tag}>" for i, cell in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    kind = ' class="differing"' if mark else ""
    head_row = f"<thead><tr>{cells('th', head)}</tr></thead>"
    return f'<div class="scroll"><table{kind}>{head_row}<tbody>{body}</tbody></table></div>'


def _legend(tracks: list[_Track], both: bool) -> str:
    def chip(track: _Track, label: str, opacity: float = 1.0) -> str:
        border = _BORDERS[track.style // len(_LIGHT.lines) % len(_BORDERS)]
        line = f"border-top:3px {border} var(--line-{track.style % len(_LIGHT.lines)});opacity:{opacity}"
        return f'<li><span style="{line}"></span>{escape(label)}</li>'

    if len(tracks) > 1:
        chips = "".join(chip(track, track.label) for track in tracks)
    elif both:
        chips = chip(tracks[0], "training episodes", 0.5) + chip(tracks[0], "evaluation")
    else:
        return ""
    return f'<ul class="legend">{chips}</ul>'


def _figures(charts: list[_Chart], tracks: list[_Track], size: tuple[float, float], points: int, kind: str) -> str:
    """The charts in a grid, each under its title."""
    drawn = []
    for i, chart in enumerate(charts):
        rows = [row for track in tracks for rows in track.members for row in rows]
        # A mean return is null until an episode ends: that is no news. A loss is.
        lost = sum(key in row and row[key] is None for row in rows for key in chart.keys if key not in (EPISODE, EVAL))
        news = f'<b class="lost">{lost} not finite</b>' if lost and not chart.keys[0].startswith("episode/") else ""
        picture = _svg(chart, tracks, size, points, f"{kind}{i}")
        drawn.append(f"<figure><figcaption>{escape(chart.title)}{news}</figcaption>{picture}</figure>")
    return f'<div class="{kind}">{"".join(drawn)}</div>' if drawn else ""


def _curves(runs: list[_Run], tracks: list[_Track]) -> str:
    charts = _learning(runs)
    if not charts:
        text = "No episode has ended yet." if any(run.rows for run in runs) else "No metrics yet."
        return _section("Learning", f'<p class="empty">{text}</p>')
    band = any(len(track.members) > 1 for track in tracks)
    legend = _legend(tracks, len(charts[0].keys) > 1)
    note = "mean ± standard deviation over members; thin lines are members" if band else ""
    return _section("Learning", legend, _figures(charts, tracks, (5.2, 2.9), MAX_POINTS, "wide"), note=note)


def _population(runs: list[_Run], tracks: list[_Track]) -> str:
    """How the members of populations ended, the best on top."""
    if all(len(track.members) < 2 for track in tracks) and len(tracks) <= len(runs):
        return ""

    def last(track: _Track, key: str) -> list[float]:
        lines = [_line(track, rows, key, "env_steps")[1] for rows in track.members]
        return [float(line[-1]) for line in lines if line.size]

    def cell(values: list[float]) -> str:
        return _with_spread(*_mean_and_std(values))

    ends = [(last(track, EVAL), last(track, EPISODE), track) for track in tracks]
    ends.sort(key=lambda end: float(np.mean(end[0] or end[1] or [-np.inf])), reverse=True)
    rows = [
        [escape(track.label), str(len(track.members)), cell(evals), cell(episodes), *_extremes(evals or episodes)]
        for evals, episodes, track in ends
    ]
    head = ("Group", "Members", "Last evaluation", "Last episode return", "Worst", "Best")
    return _section("Members", _table(head, rows, right=(1, 2, 3, 4, 5)))


def _extremes(values: list[float]) -> tuple[str, str]:
    return (_number(min(values)), _number(max(values))) if values else ("–", "–")


def _others(runs: list[_Run], tracks: list[_Track]) -> str:
    """Every other metric as a small chart: speed over time first, then losses, then the rest."""
    rows = [row for run in runs for row in run.rows]
    keys = {key for row in rows for key, value in row.items() if _finite(value) or value is None}
    keys = {key for key in keys if key not in (*_AXES, EPISODE, EVAL) and not key.startswith("time/")}
    finite = {key for row in rows for key in keys if _finite(row.get(key))}
    shown = sorted(finite, key=lambda key: (key != SPEED, not key.startswith("loss/"), key))
    timed = any(_finite(row.get("seconds")) for row in rows)
    charts = [
        _Chart("steps per second", (key,), "seconds" if timed else "env_steps")
        if key == SPEED
        else _Chart(key, (key,), "env_steps")
        for key in shown[:MAX_CHARTS]
    ]
    hidden = [f"{len(shown) - MAX_CHARTS} more are in metrics.jsonl"] if len(shown) > MAX_CHARTS else []
    if keys - finite:
        hidden.append(f"never finite: {', '.join(sorted(keys - finite))}")
    if not charts and not hidden:
        return ""
    pictures = _figures(charts, tracks, (3.6, 2.0), 400, "small") or '<p class="empty">Nothing to draw.</p>'
    return _section("Speed, losses and the rest", _legend(tracks, False), pictures, note="; ".join(hidden))


def _time(runs: list[_Run]) -> str:
    """Where the time went: the shares of the `time/...` metrics."""
    split = [_split(run) for run in runs]
    keys = sorted({key for shares in split for key in shares}, key=lambda key: -sum(s.get(key, 0.0) for s in split))
    colours = {key: f"var(--line-{i % len(_LIGHT.lines)})" for i, key in enumerate(keys)}
    bars = []
    for run, shares in zip(runs, split, strict=True):
        bar, chips = "", ""
        for key in filter(shares.get, keys):
            name, colour, share = escape(key), colours[key], shares[key]
            bar += f'<span style="flex:{share:.4f};background:{colour}" title="{name} {share:.1%}"></span>'
            chips += f'<li><span style="border-top:3px solid {colour}"></span>{name} <b>{share:.1%}</b></li>'
        if bar:
            title = f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else ""
            bars.append(f'{title}<div class="bar">{bar}</div><ul class="legend">{chips}</ul>')
    return _section("Where the time went", *bars)


def _split(run: _Run) -> dict[str, float]:
    """The share of each `time/...` metric in their sum over the run."""
    total: dict[str, float] = {}
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("time/") and _finite(value) and value > 0:
                name = key.removeprefix("time/")
                total[name] = total.get(name, 0.0) + value
    return {name: value / sum(total.values()) for name, value in total.items()}


def _settings(runs: list[_Run]) -> str:
    flat = [dict(_flatten(run.config)) for run in runs]
    if len(runs) == 1:
        return _section("Settings", _cards(_tables(runs[0].config)))
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    values = {key: [_value(settings[key]) if key in settings else "–" for settings in flat] for key in keys}
    head = ["Setting", *(escape(run.name) for run in runs)]
    differing = [[f"<code>{escape(key)}</code>", *row] for key, row in values.items() if len(set(row)) > 1]
    common = [[f"<code>{escape(key)}</code>", row[0]] for key, row in values.items() if len(set(row)) == 1]
    return _section(
        "Settings",
        _table(head, differing, mark=True) if differing else '<p class="empty">All settings are the same.</p>',
        f"<details><summary>{len(common)} settings in common</summary>{_table(['Setting', 'Value'], common)}</details>"
        if common
        else "",
    )


def _tables(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of a config by name, flattened; what stands outside of any table comes under ''."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            tables[key] = dict(_flatten(value))
        else:
            tables.setdefault("", {})[key] = value
    return tables


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _cards(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of names and values side by side."""
    cards = "".join(
        f"<div><h3>{escape(name)}</h3><table>"
        + "".join(f"<tr><td>{escape(key)}</td><td>{_value(value)}</td></tr>" for key, value in table.items())
        + "</table></div>"
        for name, table in tables.items()
        if table
    )
    return f'<div class="cards">{cards}</div>' if cards else ""


def _surroundings(runs: list[_Run]) -> str:
    """Versions and machine, once where all runs share them."""

    def tables(run: _Run) -> dict[str, dict[str, Any]]:
        info = run.info
        when = {key: info[key] for key in ("started", "finished", "commit", "command") if info.get(key)}
        found = {key: info.get(key) for key in ("versions", "machine", "devices")}
        return {"run": when} | {key: dict(_flatten(value)) for key, value in found.items() if isinstance(value, dict)}

    if len(runs) == 1:
        return _section("Environment", _cards(tables(runs[0])))
    folded = (f"<details><summary>{escape(run.name)}</summary>{_cards(tables(run))}</details>" for run in runs)
    return _section("Environment", *folded)


def _number(value: Any) -> str:
    """A number as people write it, or – where there is none."""
    if not _finite(value := value.item() if isinstance(value, np.generic) else value):
        return "–"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.2e}"


def _with_spread(mean: float | None, std: float | None) -> str:
    return _number(mean) + (f" ± {_number(std)}" if std is not None else "")


def _short(value: Any) -> str:
    """12,345,678 as 12.3M."""
    return short(value) if _finite(value) and abs(value) >= 10_000 else _number(value)


def _clock(seconds: Any) -> str:
    """Seconds in the units people use."""
    if not _finite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


def _value(value: Any) -> str:
    """A setting, escaped."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value) or "[ ]"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _style() -> str:
    def variables(ink: _Ink, **more: str) -> str:
        lines = {f"line-{i}": line for i, line in enumerate(ink.lines)}
        named = {"text": ink.text, "muted": ink.muted, "grid": ink.grid} | lines | more
        return "".join(f"--{key}:{value};" for key, value in named.items())

    light = variables(_LIGHT, **_LIGHT_PAGE)
    dark = variables(_DARK, **_DARK_PAGE)
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{_CSS}"


_LIGHT_PAGE = {
    "page": "#f6f7f9",
    "card": "#fff",
    "edge": "#e6e8ec",
    "tint": "#fff4dc",
    "bad": "#c22f4e",
    "good": "#16825b",
}
_DARK_PAGE = {
    "page": "#14171b",
    "card": "#1c2026",
    "edge": "#2b313a",
    "tint": "#3a3017",
    "bad": "#ff7a93",
    "good": "#42c998",
}
_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
  font-variant-numeric:tabular-nums;-webkit-font-smoothing:antialiased}
main{max-width:1240px;margin:0 auto;padding:40px 24px 64px}
header p{margin:6px 0 0;color:var(--muted)}
h1{margin:0;font-size:26px;line-height:1.25;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
h1 i{margin:0 .4em;color:var(--muted);font-weight:400}
h2{margin:0 0 14px;font-size:17px;font-weight:620;letter-spacing:-.005em}
h3{margin:0 0 6px;font-size:13px;font-weight:600;color:var(--muted)}
section{margin-top:40px}
.note{margin-left:12px;font-size:13px;font-weight:400;letter-spacing:0;color:var(--muted)}
.tiles,.facts,.cards,.wide,.small{display:grid;gap:16px;margin:0}
.tiles{grid-template-columns:repeat(auto-fit,minmax(200px,1fr));margin-top:28px}
.tiles div,.facts,.wide figure,.small figure,.cards>div,.scroll,details,aside,.bar,.empty{background:var(--card);
  border:1px solid var(--edge);border-radius:10px}
.tiles div{padding:14px 18px 12px}
dt,.tiles small{font-size:13px;color:var(--muted)}
dd{margin:0}
.tiles dd{font-size:27px;line-height:1.3;font-weight:620;letter-spacing:-.02em;white-space:nowrap}
.tiles i{font-size:17px;font-style:normal;font-weight:450;color:var(--muted)}
.tiles small{display:block;min-height:1.5em}
.facts{grid-template-columns:repeat(auto-fill,minmax(165px,1fr));padding:16px 18px}
.facts dd{overflow-wrap:anywhere}
.wide{grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr))}
.small{grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr))}
figure{margin:0;padding:14px 14px 8px}
figcaption{margin:0 4px 4px;font-size:13px;font-weight:600;overflow-wrap:anywhere}
.lost{float:right;font-weight:500;color:var(--bad)}
svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:0 0 12px;padding:0;list-style:none;font-size:13px}
.legend span{display:inline-block;width:22px;margin-right:8px;vertical-align:middle}
.legend b{font-weight:600}
.bar{display:flex;height:26px;overflow:hidden;gap:1px;margin-bottom:10px}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:13px}
th,td{padding:8px 10px;text-align:left;vertical-align:top;border-top:1px solid var(--edge)}
thead th{border-top:0;font-weight:550;color:var(--muted);white-space:nowrap}
.scroll td{white-space:nowrap}
.scroll th:first-child,.scroll td:first-child{padding-left:18px}
.number{text-align:right}
.differing td+td{background:var(--tint)}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr));align-items:start}
.cards>div{padding:12px 16px}
.cards td{padding:4px 0;overflow-wrap:anywhere}
.cards td:first-child{padding-right:16px;overflow-wrap:normal;color:var(--muted)}
.cards td+td{text-align:right}
.cards tr:first-child td{border-top:0}
details{margin-top:12px;padding:10px 14px}
summary{cursor:pointer;font-size:14px}
details>div{margin-top:10px;border:0}
details .cards>div{background:none}
code,pre{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
aside{margin-top:24px;padding:14px 18px;border-left:4px solid var(--bad)}
aside b{color:var(--bad);font-weight:600}
pre{margin:8px 0 0;white-space:pre-wrap;overflow-wrap:anywhere}
.empty{margin:0;padding:32px;text-align:center;color:var(--muted)}
.badge{display:inline-block;padding:0 9px;border:1px solid;border-radius:20px;font-size:12.5px;color:var(--muted)}
.badge.done{color:var(--good)}.badge.running{color:var(--line-0)}
.badge.failed{color:var(--bad)}.badge.interrupted{color:var(--line-1)}
p .badge{margin-right:8px}
@media print{body{background:none}section{break-inside:avoid}}
"""
