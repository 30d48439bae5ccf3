"""What happened in a run, or how several compare: one HTML page that needs no network, and a PNG beside it."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from boonta.experiments import curves
from boonta.experiments.charts import DARK, LIGHT, Chart, Ink, learning, png, svg
from boonta.experiments.curves import EPISODE, EVAL, MAX_POINTS, SPEED, Run, Track, finite
from boonta.experiments.files import write_bytes, write_text
from boonta.experiments.progress import short

MAX_CHARTS = 48
"""Small charts a page shows at most."""

_AXES = ("env_steps", "frames", "seconds", "updates", "member", "member_name")
_BORDERS = ("solid", "dashed", "dotted")  # in a legend, for the dashes of a chart


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
    runs = curves.load([Path(folder) for folder in folders])
    page, picture = _page(runs), png(runs)
    write_bytes(out.with_suffix(".png"), picture)
    write_text(out, page)
    return out


def _page(runs: list[Run]) -> str:
    tracks = curves.tracks(runs)
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
    title = escape(curves.title(runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title} – Boonta</title>\n<style>{_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, *content: str, note: str = "") -> str:
    if not any(content):
        return ""
    aside = f'<span class="note">{escape(note)}</span>' if note else ""
    return f"<section><h2>{escape(title)}{aside}</h2>{''.join(content)}</section>"


def _header(runs: list[Run]) -> str:
    if len(runs) > 1:
        names = sorted({curves.named(run, "env") for run in runs})
        return f"<header><h1>{curves.title(runs)}</h1><p>on {escape(', '.join(names))}</p></header>"
    run = runs[0]
    heading = "<i>·</i>".join(
        f"<span>{escape(curves.named(run, kind))}</span>" for kind in ("agent", "env", "architecture")
    )
    tiles = "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><small>{note}</small></div>" for label, value, note in _tiles(run)
    )
    return f'<header><h1>{heading}</h1><p>{_badge(run)} {escape(run.name)}</p></header><dl class="tiles">{tiles}</dl>'


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """The four numbers one looks for first: label, value and remark, all HTML."""
    result = run.info.get("result") or {}
    mean, std = curves.final(run, EVAL, "eval_return")
    label, key = ("Evaluation return", EVAL) if mean is not None else ("Episode return", EPISODE)
    if mean is None:
        mean, std = curves.final(run, EPISODE, "episode_return")
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
    goal = goal * max(1, len(members)) if finite(goal) else goal
    steps, seconds = _reached(run, "env_steps"), _reached(run, "seconds")
    if steps is not None and not finite(result.get("env_steps")):  # the log counts those of one member
        steps *= max(1, len(members))
    compiling = result.get("compile_seconds")
    return [
        (label, _number(mean) + spread, note),
        ("Environment steps", _short(steps), f"of {_short(goal)}" if finite(goal) and goal != steps else ""),
        ("Training time", _clock(seconds), f"{_clock(compiling)} compiling" if finite(compiling) else ""),
        ("Speed", _short(_speed(run)), "environment steps per second"),
    ]


def _reached(run: Run, key: str) -> float | None:
    """How far the run got, in environment steps, seconds or updates."""
    value = (run.info.get("result") or {}).get(key)
    return value if finite(value) else max((row[key] for row in run.rows if finite(row.get(key))), default=None)


def _speed(run: Run) -> float | None:
    value = (run.info.get("result") or {}).get(SPEED)
    if finite(value):
        return value
    speeds = [row[SPEED] for row in run.rows if finite(row.get(SPEED))]
    return float(np.median(speeds)) if speeds else None


def _badge(run: Run) -> str:
    status = str(run.info.get("status") or "unknown")
    known = status if status in ("done", "running", "failed", "interrupted") else "unknown"
    return f'<span class="badge {known}">{escape(status)}</span>'


def _cause(run: Run) -> str:
    return f"<aside><b>{escape(run.name)} died of</b><pre>{escape(str(run.info['cause']))}</pre></aside>"


def _facts(run: Run) -> dict[str, str]:
    """The line of a run in the summary: HTML by label."""
    info, devices = run.info, run.info.get("devices") or {}
    mean, std = curves.final(run, EVAL, "eval_return")
    kind = devices.get("kind") or devices.get("platform")
    return {
        "Status": _badge(run),
        **{kind.capitalize(): escape(curves.named(run, kind)) for kind in ("agent", "env", "architecture")},
        "Evaluation": _with_spread(mean, std),
        "Steps": _number(_reached(run, "env_steps")),
        "Time": _clock(_reached(run, "seconds")),
        "Steps/s": _number(_speed(run)),
        "Updates": _number(_reached(run, "updates")),
        "Seed": _value(info.get("seed")),
        "Devices": f"{escape(str(devices.get('count', 1)))} × {escape(str(kind))}" if kind else "–",
        "Commit": f"<code>{escape(str(info['commit'])[:8])}</code>" if info.get("commit") else "–",
    }


def _summary(runs: list[Run]) -> str:
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


def _legend(tracks: list[Track], both: bool) -> str:
    def chip(track: Track, label: str, opacity: float = 1.0) -> str:
        border = _BORDERS[track.style // len(LIGHT.lines) % len(_BORDERS)]
        line = f"border-top:3px {border} var(--line-{track.style % len(LIGHT.lines)});opacity:{opacity}"
        return f'<li><span style="{line}"></span>{escape(label)}</li>'

    if len(tracks) > 1:
        chips = "".join(chip(track, track.label) for track in tracks)
    elif both:
        chips = chip(tracks[0], "training episodes", 0.5) + chip(tracks[0], "evaluation")
    else:
        return ""
    return f'<ul class="legend">{chips}</ul>'


def _figures(charts: list[Chart], tracks: list[Track], size: tuple[float, float], points: int, kind: str) -> str:
    """The charts in a grid, each under its title."""
    drawn = []
    for i, chart in enumerate(charts):
        rows = [row for track in tracks for rows in track.members for row in rows]
        # A mean return is null until an episode ends: that is no news. A loss is.
        lost = sum(key in row and row[key] is None for row in rows for key in chart.keys if key not in (EPISODE, EVAL))
        news = f'<b class="lost">{lost} not finite</b>' if lost and not chart.keys[0].startswith("episode/") else ""
        picture = svg(chart, tracks, size, points, f"{kind}{i}")
        drawn.append(f"<figure><figcaption>{escape(chart.title)}{news}</figcaption>{picture}</figure>")
    return f'<div class="{kind}">{"".join(drawn)}</div>' if drawn else ""


def _curves(runs: list[Run], tracks: list[Track]) -> str:
    charts = learning(runs)
    if not charts:
        text = "No episode has ended yet." if any(run.rows for run in runs) else "No metrics yet."
        return _section("Learning", f'<p class="empty">{text}</p>')
    band = any(len(track.members) > 1 for track in tracks)
    legend = _legend(tracks, len(charts[0].keys) > 1)
    note = "mean ± standard deviation over members; thin lines are members" if band else ""
    return _section("Learning", legend, _figures(charts, tracks, (5.2, 2.9), MAX_POINTS, "wide"), note=note)


def _population(runs: list[Run], tracks: list[Track]) -> str:
    """How the members of populations ended, the best on top."""
    if all(len(track.members) < 2 for track in tracks) and len(tracks) <= len(runs):
        return ""

    def last(track: Track, key: str) -> list[float]:
        lines = [curves.line(track, rows, key, "env_steps")[1] for rows in track.members]
        return [float(line[-1]) for line in lines if line.size]

    def cell(values: list[float]) -> str:
        return _with_spread(*curves.mean_and_std(values))

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


def _others(runs: list[Run], tracks: list[Track]) -> str:
    """Every other metric as a small chart: speed over time first, then losses, then the rest."""
    rows = [row for run in runs for row in run.rows]
    keys = {key for row in rows for key, value in row.items() if finite(value) or value is None}
    keys = {key for key in keys if key not in (*_AXES, EPISODE, EVAL) and not key.startswith("time/")}
    drawable = {key for row in rows for key in keys if finite(row.get(key))}
    shown = sorted(drawable, key=lambda key: (key != SPEED, not key.startswith("loss/"), key))
    timed = any(finite(row.get("seconds")) for row in rows)
    charts = [
        Chart("steps per second", (key,), "seconds" if timed else "env_steps")
        if key == SPEED
        else Chart(key, (key,), "env_steps")
        for key in shown[:MAX_CHARTS]
    ]
    hidden = [f"{len(shown) - MAX_CHARTS} more are in metrics.jsonl"] if len(shown) > MAX_CHARTS else []
    if keys - drawable:
        hidden.append(f"never finite: {', '.join(sorted(keys - drawable))}")
    if not charts and not hidden:
        return ""
    pictures = _figures(charts, tracks, (3.6, 2.0), 400, "small") or '<p class="empty">Nothing to draw.</p>'
    return _section("Speed, losses and the rest", _legend(tracks, False), pictures, note="; ".join(hidden))


def _time(runs: list[Run]) -> str:
    """Where the time went: the shares of the `time/...` metrics."""
    split = [_split(run) for run in runs]
    keys = sorted({key for shares in split for key in shares}, key=lambda key: -sum(s.get(key, 0.0) for s in split))
    colours = {key: f"var(--line-{i % len(LIGHT.lines)})" for i, key in enumerate(keys)}
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


def _split(run: Run) -> dict[str, float]:
    """The share of each `time/...` metric in their sum over the run."""
    total: dict[str, float] = {}
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("time/") and finite(value) and value > 0:
                name = key.removeprefix("time/")
                total[name] = total.get(name, 0.0) + value
    return {name: value / sum(total.values()) for name, value in total.items()}


def _settings(runs: list[Run]) -> str:
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


def _surroundings(runs: list[Run]) -> str:
    """Versions and machine, once where all runs share them."""

    def tables(run: Run) -> dict[str, dict[str, Any]]:
        info = run.info
        when = {key: info[key] for key in ("started", "finished", "commit", "command") if info.get(key)}
        found = {key: info.get(key) for key in ("versions", "machine", "devices")}
        return {"run": when} | {key: dict(_flatten(value)) for key, value in found.items() if isinstance(value, dict)}

    if len(runs) == 1:
        return _section("Machine and versions", _cards(tables(runs[0])))
    folded = (f"<details><summary>{escape(run.name)}</summary>{_cards(tables(run))}</details>" for run in runs)
    return _section("Machine and versions", *folded)


def _number(value: Any) -> str:
    """A number as people write it, or – where there is none."""
    if not finite(value := value.item() if isinstance(value, np.generic) else value):
        return "–"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    return f"{value:.4g}" if abs(value) >= 0.001 else f"{value:.2e}"


def _with_spread(mean: float | None, std: float | None) -> str:
    return _number(mean) + (f" ± {_number(std)}" if std is not None else "")


def _short(value: Any) -> str:
    """12,345,678 as 12.3M."""
    return short(value) if finite(value) and abs(value) >= 10_000 else _number(value)


def _clock(seconds: Any) -> str:
    """Seconds in the units people use."""
    if not finite(seconds):
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
    def variables(ink: Ink, **more: str) -> str:
        lines = {f"line-{i}": line for i, line in enumerate(ink.lines)}
        named = {"text": ink.text, "muted": ink.muted, "grid": ink.grid} | lines | more
        return "".join(f"--{key}:{value};" for key, value in named.items())

    light = variables(LIGHT, **_LIGHT_PAGE)
    dark = variables(DARK, **_DARK_PAGE)
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
