"""What happened in a run, or how several compare: one HTML page that needs no network, and a PNG beside it."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from boonta.experiments import curves, page
from boonta.experiments.atari import human_normalized
from boonta.experiments.charts import LIGHT, Chart, learning, png
from boonta.experiments.curves import EPISODE, EVAL, MAX_POINTS, SPEED, Run, Track, finite
from boonta.experiments.files import write_bytes, write_text

MAX_CHARTS = 48
"""Small charts a page shows at most."""

_AXES = ("env_steps", "frames", "seconds", "updates", "member", "member_name")


def write_report(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    timed: Callable[[], dict[str, Any]] = lambda: {},
) -> Path:
    """Write the report of one run, or the comparison of several, and its PNG (same name) beside it.

    Args:
        folders: run folders, of any status, also those still running or without metrics.
        out: the HTML file; by default `report.html` in the folder of a single run, else in the current folder.
        timed: what is known of the first run's result only once its charts are drawn: the time that all took.

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
    write_bytes(out.with_suffix(".png"), png(runs))
    tracks = curves.tracks(runs)
    drawn = [_curves(runs, tracks), _population(runs, tracks), _others(runs, tracks)]
    if times := timed():
        runs[0].info["result"] = times
    write_text(out, _page(runs, tracks, drawn))
    return out


def _page(runs: list[Run], tracks: list[Track], drawn: list[str]) -> str:
    body = [
        _header(runs, tracks),
        *(_cause(run) for run in runs if run.info.get("cause")),
        _summary(runs),
        *drawn,
        _time(runs),
        _settings(runs),
        _surroundings(runs),
    ]
    title = escape(curves.title(runs))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title} – Boonta</title>\n<style>{page.style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _header(runs: list[Run], tracks: list[Track]) -> str:
    if len(runs) > 1:
        names = sorted({curves.named(run, "env") for run in runs})
        return f"<header><h1>{curves.title(runs)}</h1><p>on {escape(', '.join(names))}</p></header>"
    run = runs[0]
    heading = "<i>·</i>".join(
        f"<span>{escape(curves.named(run, kind))}</span>" for kind in ("agent", "env", "architecture")
    )
    tiles = "".join(
        f"<div><dt>{label}</dt><dd>{value}</dd><small>{note}</small></div>"
        for label, value, note in _tiles(run, tracks)
    )
    return f'<header><h1>{heading}</h1><p>{_badge(run)} {escape(run.name)}</p></header><dl class="tiles">{tiles}</dl>'


def _tiles(run: Run, tracks: list[Track]) -> list[tuple[str, str, str]]:
    """The four numbers one looks for first: label, value and remark, all HTML."""
    result = run.info.get("result") or {}
    mean, std = curves.final(run, EVAL, "eval_return")
    label, key = ("Evaluation return", EVAL) if mean is not None else ("Episode return", EPISODE)
    if mean is None:
        mean, std = curves.final(run, EPISODE, "episode_return")
    episodes = result.get("eval_episodes")
    note = (
        f"± over {page.number(episodes)} episodes"
        if episodes and key == EVAL
        else "latest training episodes"
        if mean is not None
        else ""
    )
    members = {row["member"] for row in run.rows if row.get("member") is not None}
    if len(members) > 1:
        note = f"± over {len(members)} members" + (f", {page.number(episodes)} episodes in all" if episodes else "")
    if len(tracks) > 1 and mean is not None:  # settings are not pooled
        best = max(tracks, key=lambda track: np.mean(_last(track, key) or -np.inf))
        mean, std = curves.mean_and_std(_last(best, key))
        label, note = f"{label}, best of {len(tracks)} settings", f"{escape(best.label)}, seeds: {len(best.members)}"
    if human := _human(run, mean):
        note += f", {human} human-normalized"
    spread = f" <i>± {page.number(std)}</i>" if std is not None else ""
    goal = run.config.get("run", {}).get("steps")
    goal = goal * max(1, len(members)) if finite(goal) else goal
    steps, seconds = _reached(run, "env_steps"), _reached(run, "seconds")
    if steps is not None and not finite(result.get("env_steps")):  # the log counts those of one member
        steps *= max(1, len(members))
    whole = result.get("wall_seconds")
    of = f"of {page.shortened(goal)}" if finite(goal) and goal != steps else ""
    return [
        (label, page.number(mean) + spread, note),
        ("Environment steps", page.shortened(steps), of),
        ("Training time", page.clock(seconds), f"of {page.clock(whole)} in all" if finite(whole) else ""),
        ("Speed", page.shortened(_speed(run)), "environment steps per second"),
    ]


def _human(run: Run, score: float | None) -> str:
    """The score as a share of a human's, of games where that is known."""
    share = human_normalized(curves.named(run, "env"), score) if score is not None else None
    return "" if share is None else f"{share:.0%}"


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
    human = _human(run, mean)
    return {
        "Status": _badge(run),
        **{kind.capitalize(): escape(curves.named(run, kind)) for kind in ("agent", "env", "architecture")},
        "Evaluation": page.with_spread(mean, std) + (f" (human-normalized {human})" if human else ""),
        "Steps": page.number(_reached(run, "env_steps")),
        "Time": page.clock(_reached(run, "seconds")),
        "Steps/s": page.number(_speed(run)),
        "Updates": page.number(_reached(run, "updates")),
        "Seed": page.worded(info.get("seed")),
        "Devices": f"{escape(str(devices.get('count', 1)))} × {escape(str(kind))}" if kind else "–",
        "Commit": f"<code>{escape(str(info['commit'])[:8])}</code>" if info.get("commit") else "–",
    }


def _summary(runs: list[Run]) -> str:
    facts = [_facts(run) for run in runs]
    if len(runs) == 1:
        items = "".join(f"<div><dt>{label}</dt><dd>{value}</dd></div>" for label, value in facts[0].items())
        return page.section("Summary", f'<dl class="facts">{items}</dl>')
    rows = [[escape(run.name), *fact.values()] for run, fact in zip(runs, facts, strict=True)]
    return page.section("Summary", page.table(["Run", *facts[0]], rows, right=(5, 6, 7, 8, 9, 10)))


def _curves(runs: list[Run], tracks: list[Track]) -> str:
    charts = learning(runs)
    if not charts:
        text = "No episode has ended yet." if any(run.rows for run in runs) else "No metrics yet."
        return page.section("Learning", f'<p class="empty">{text}</p>')
    band = any(len(track.members) > 1 for track in tracks)
    legend = page.legend(tracks, len(charts[0].keys) > 1)
    note = "mean ± standard deviation over members; thin lines are members" if band else ""
    return page.section("Learning", legend, page.figures(charts, tracks, (5.2, 2.9), MAX_POINTS, "wide"), note=note)


def _population(runs: list[Run], tracks: list[Track]) -> str:
    """How the members of populations ended, the best on top."""
    if all(len(track.members) < 2 for track in tracks) and len(tracks) <= len(runs):
        return ""

    def cell(values: list[float]) -> str:
        return page.with_spread(*curves.mean_and_std(values))

    ends = [(_last(track, EVAL), _last(track, EPISODE), track) for track in tracks]
    ends.sort(key=lambda end: float(np.mean(end[0] or end[1] or [-np.inf])), reverse=True)
    rows = [
        [
            escape(track.label),
            str(len(track.members)),
            cell(evals),
            _interval(evals or episodes),
            cell(episodes),
            *_extremes(evals or episodes),
        ]
        for evals, episodes, track in ends
    ]
    head = ("Group", "Seeds", "Last evaluation", "95 % interval (Student's t)", "Last episode return", "Worst", "Best")
    return page.section("Members", page.table(head, rows, right=(1, 2, 3, 4, 5, 6)))


def _last(track: Track, key: str) -> list[float]:
    """The last value of each member that has one."""
    lines = [curves.line(track, rows, key, "env_steps")[1] for rows in track.members]
    return [float(line[-1]) for line in lines if line.size]


def _interval(values: list[float]) -> str:
    found = curves.interval(values)
    return f"{page.number(found[0])} to {page.number(found[1])}" if found else "–"


def _extremes(values: list[float]) -> tuple[str, str]:
    return (page.number(min(values)), page.number(max(values))) if values else ("–", "–")


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
    pictures = page.figures(charts, tracks, (3.6, 2.0), 400, "small") or '<p class="empty">Nothing to draw.</p>'
    return page.section("Speed, losses and the rest", page.legend(tracks, False), pictures, note="; ".join(hidden))


def _time(runs: list[Run]) -> str:
    """Where the time of each kind of thread went: the shares of the `time/KIND/...` metrics, a bar for each kind."""
    split = [_split(run) for run in runs]
    keys = list(dict.fromkeys(key for kinds in split for shares in kinds.values() for key in shares))
    colours = {key: f"var(--line-{i % len(LIGHT.lines)})" for i, key in enumerate(keys)}
    bars = []
    for run, kinds in zip(runs, split, strict=True):
        for kind, shares in kinds.items():
            bar, chips = "", ""
            for key, share in shares.items():
                name, colour = escape(key), colours[key]
                bar += f'<span style="flex:{share:.4f};background:{colour}" title="{name} {share:.1%}"></span>'
                chips += f'<li><span style="border-top:3px solid {colour}"></span>{name} <b>{share:.1%}</b></li>'
            title = " · ".join([run.name] * (len(runs) > 1) + [kind] * bool(kind))
            head = f"<h3>{escape(title)}</h3>" if title else ""
            bars.append(f'{head}<div class="bar">{bar}</div><ul class="legend">{chips}</ul>')
    return page.section("Where the time went", *bars)


def _split(run: Run) -> dict[str, dict[str, float]]:
    """By the kind of thread, the share of each `time/KIND/...` metric in their sum over the run, the largest first."""
    parts = (run.info.get("result") or {}).get("parts")
    known = parts.items() if isinstance(parts, dict) else ()
    whole = {str(name): seconds for name, seconds in known if finite(seconds) and seconds > 0}
    total: dict[str, dict[str, float]] = {"the command": whole} if whole else {}
    for row in run.rows:
        for key, value in row.items():
            if key.startswith("time/") and finite(value) and value > 0:
                kind, _, name = key.removeprefix("time/").rpartition("/")
                total.setdefault(kind, {}).setdefault(name, 0.0)
                total[kind][name] += value
    return {
        kind: {name: parts[name] / sum(parts.values()) for name in sorted(parts, key=lambda name: -parts[name])}
        for kind, parts in sorted(total.items())
    }


def _settings(runs: list[Run]) -> str:
    flat = [dict(_flatten(run.config)) for run in runs]
    if len(runs) == 1:
        return page.section("Settings", page.cards(_tables(runs[0].config)))
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    values = {key: [page.worded(settings[key]) if key in settings else "–" for settings in flat] for key in keys}
    head = ["Setting", *(escape(run.name) for run in runs)]
    differing = [[f"<code>{escape(key)}</code>", *row] for key, row in values.items() if len(set(row)) > 1]
    common = [[f"<code>{escape(key)}</code>", row[0]] for key, row in values.items() if len(set(row)) == 1]
    return page.section(
        "Settings",
        page.table(head, differing, mark=True) if differing else '<p class="empty">All settings are the same.</p>',
        f"<details><summary>{len(common)} settings in common</summary>"
        f"{page.table(['Setting', 'Value'], common)}</details>"
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


def _surroundings(runs: list[Run]) -> str:
    """Versions and machine, once where all runs share them."""

    def tables(run: Run) -> dict[str, dict[str, Any]]:
        info = run.info
        when = {key: info[key] for key in ("started", "finished", "commit", "command") if info.get(key)}
        found = {key: info.get(key) for key in ("versions", "machine", "devices")}
        return {"run": when} | {key: dict(_flatten(value)) for key, value in found.items() if isinstance(value, dict)}

    if len(runs) == 1:
        return page.section("Machine and versions", page.cards(tables(runs[0])))
    folded = (f"<details><summary>{escape(run.name)}</summary>{page.cards(tables(run))}</details>" for run in runs)
    return page.section("Machine and versions", *folded)
