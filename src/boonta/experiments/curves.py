"""What run folders hold, as lines: folders into runs, runs into tracks, rows of metrics into points."""

import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boonta.experiments.files import read_bytes, read_json
from boonta.experiments.members import folders as folders_of
from boonta.experiments.members import there
from boonta.experiments.metrics import read_metrics

MAX_POINTS = 2000
"""Points a line keeps at most."""

EPISODE, EVAL, SPEED = "episode/return_mean", "eval/return_mean", "steps_per_second"
"""The metrics that have charts of their own."""

_PLAIN = (int, float, str, type(None))  # what a row of metrics holds

# --- runs ------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """What a run folder holds: its settings, what is known about the run, and its metrics by row."""

    name: str
    config: dict[str, Any]
    info: dict[str, Any]
    rows: list[dict[str, Any]]


class Track(NamedTuple):
    """One coloured line: the members of a run that differ in nothing but their seed."""

    label: str
    style: int
    members: list[list[dict[str, Any]]]
    clock: tuple[np.ndarray, np.ndarray]
    """Environment steps and the seconds at which they were reached, for rows that do not say."""


def load(folders: list[Path]) -> list[Run]:
    """The runs in these folders, each under its folder's name, or its path where names repeat."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        root = os.path.commonpath([folder.resolve().parent for folder in folders])
        names = [os.path.relpath(folder.resolve(), root) for folder in folders]
    return [_read(folder, name) for folder, name in zip(folders, names, strict=True)]


def _read(folder: Path, name: str) -> Run:
    if not (folder / "run.json").is_file():
        raise ValueError(f"not a run folder: {folder} (it has no run.json)")
    info = read_json(folder / "run.json")
    if not isinstance(info, dict):
        raise ValueError(f"{folder / 'run.json'} must hold a JSON object, got {type(info).__name__}")
    for key in ("devices", "machine", "result", "versions"):
        if not isinstance(info.get(key) or {}, dict):
            raise ValueError(f"{folder / 'run.json'}: {key!r} must be an object, got {type(info[key]).__name__}")
    for key, value in (info.get("result") or {}).items():
        if key.startswith(("eval_return", "episode_return")) and value is not None and not finite(value):
            raise ValueError(f"{folder / 'run.json'}: {key!r} must be a number, got {value!r}")
    config = folder / "config.toml"
    try:
        settings = tomllib.loads(read_bytes(config).decode("utf-8")) if os.path.lexists(config) else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{config} is not TOML: {error}") from error
    if odd := next((key for key, value in settings.items() if not isinstance(value, dict)), ""):
        raise ValueError(f"{config}: {odd!r} must be a table")
    if not there(folder):
        return Run(name, settings, info, _rows(folder))
    names, rows = info.get("members") or [], []
    for i, one in enumerate(folders_of(folder)):
        told = {"member": i, "member_name": str(names[i]) if i < len(names) else f"member {i}"}
        rows += [row | told for row in _rows(one)]
    return Run(name, settings, info, rows)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if isinstance(value, _PLAIN)} for row in read_metrics(folder)]


def tracks(runs: list[Run]) -> list[Track]:
    """The tracks of all runs: one per setting; runs that differ in nothing but their seed are pooled."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_settings_of(run), []).append(run)
    labels = _labels(list(alike.values()), len(runs))
    tracks: list[Track] = []
    for label, pool in zip(labels, alike.values(), strict=True):
        groups: dict[str, dict[Any, list[dict[str, Any]]]] = {}
        for i, run in enumerate(pool):
            for row in run.rows:
                group = setting_of(str(row.get("member_name") or ""))
                groups.setdefault(group, {}).setdefault((i, row.get("member")), []).append(row)
        rows = [row for run in pool for row in run.rows if {"env_steps", "seconds"} <= row.keys()]
        timed = [(row["env_steps"], row["seconds"]) for row in rows]
        clock = np.array(sorted((s, t) for s, t in timed if finite(s) and finite(t)), float).reshape(-1, 2).T
        for group, members in groups.items():
            for i in range(len(pool)):
                if len([who for who in members if who[0] == i]) > 1:  # rows of no member would count twice
                    members.pop((i, None), None)
            names = " · ".join(filter(None, (label, group))) or pool[0].name
            tracks.append(Track(names, len(tracks), list(members.values()), (clock[0], clock[1])))
    return tracks


def setting_of(member: str) -> str:
    """What the name of a member says but for its seed."""
    parts = (part.strip() for part in member.split(","))
    return ", ".join(part for part in parts if part and not part.startswith("seed="))


def _settings_of(run: Run) -> str:
    """All that is set but the seed: equal for runs that are pooled. A run without a configuration is like no other."""
    if not run.config:
        return run.name
    config = {name: dict(table) for name, table in run.config.items() if isinstance(table, dict)}
    for key in ("seed", "seeds", "sweep", "recipe"):
        config.get("run", {}).pop(key, None)
    return json.dumps(config, sort_keys=True, default=str)


def _labels(pools: list[list[Run]], count: int) -> list[str]:
    """What each pool is called, of so many runs: by its run; or, where runs are pooled, by what differs."""
    if count == 1:
        return [""]
    if count == len(pools):
        return [pool[0].name for pool in pools]
    flat = [
        {f"{table}.{key}": value for table, values in pool[0].config.items() for key, value in values.items()}
        for pool in pools
    ]
    keys = sorted({key for one in flat for key in one})
    differ = [key for key in keys if len({json.dumps(one.get(key), default=str) for one in flat}) > 1]
    differ = [key for key in differ if not key.startswith("run.") or key == "run.steps"]
    told = [", ".join(f"{key.removeprefix('agent.')}={one.get(key)}" for key in differ) for one in flat]
    names = [words or pool[0].name for words, pool in zip(told, pools, strict=True)]
    return [f"{name} ({len(pool)} runs)" if len(pool) > 1 else name for name, pool in zip(names, pools, strict=True)]


def finite(value: Any) -> bool:
    """Whether it is a number, and neither NaN nor infinite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is no float
        return False


def named(run: Run, kind: str) -> str:
    """The name of the run's agent, env or architecture."""
    table = run.config.get(kind)
    places = (run.config.get("run", {}), {kind: table.get("name")} if isinstance(table, dict) else {}, run.info)
    return str(next((place[kind] for place in places if place.get(kind)), "–"))


def title(runs: list[Run]) -> str:
    """What a report on these runs is called."""
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    return " · ".join(named(runs[0], kind) for kind in ("agent", "env", "architecture"))


def final(run: Run, key: str, result: str) -> tuple[float | None, float | None]:
    """Mean and spread of the run's last word on `key`: of its result, else over the members' last rows."""
    done = run.info.get("result") or {}
    over = "std_over_members" if done.get(f"{result}_std_over_members") is not None else "std"
    mean, std = (np.atleast_1d(np.asarray(done.get(f"{result}_{x}"), float)) for x in ("mean", over))
    if mean.size == 1 and np.isfinite(mean[0]):
        return float(mean[0]), float(std[0]) if std.size == 1 and np.isfinite(std[0]) else None
    last = {row.get("member"): row[key] for row in run.rows if finite(row.get(key))}
    return mean_and_std(list(last.values()))


def mean_and_std(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation: None where there are too few values for it, no spread that is but rounding."""
    if not values:
        return None, None
    mean, std = float(np.mean(values)), float(np.std(values))
    return mean, None if len(values) == 1 else std if std > 1e-9 * abs(mean) else 0.0


def interval(values: list[float]) -> tuple[float, float] | None:
    """Where the mean lies with 95 %, by Student's t; None where there are fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(stdtrit(len(values) - 1, 0.975)) * error
    return mean - reach, mean + reach


# --- lines -----------------------------------------------------------------------------------------------------------


def line(track: Track, rows: list[dict[str, Any]], key: str, over: str) -> tuple[np.ndarray, np.ndarray]:
    """Where `key` is a finite number: environment steps or seconds, ascending, and its values."""
    steps, values, seconds = [], [], []
    for row in rows:
        if finite(row.get(key)) and (finite(row.get("env_steps")) or finite(row.get("seconds"))):
            steps.append(row["env_steps"] if finite(row.get("env_steps")) else np.nan)
            seconds.append(row["seconds"] if finite(row.get("seconds")) else np.nan)
            values.append(row[key])
    x, y = np.array(seconds if over == "seconds" else steps, float), np.array(values, float)
    if over == "seconds" and track.clock[0].size:
        x = np.where(np.isnan(x), np.interp(np.array(steps, float), *track.clock), x)
    kept = np.isfinite(x)
    x, y = x[kept], y[kept]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def spread(lines: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation over lines, at every place one of them has a point that all of them reach.

    Where there is no such place, over those that reach each place.
    """
    x = np.unique(np.concatenate([line[0] for line in lines]))
    if x.size > MAX_POINTS:
        x = x[np.linspace(0, x.size - 1, MAX_POINTS).round().astype(int)]
    y = np.stack([np.interp(x, *line, left=np.nan, right=np.nan) for line in lines])
    count = np.isfinite(y).sum(axis=0)
    reached = count == len(lines)
    kept = reached if reached.any() else count > 0
    x, y, count = x[kept], y[:, kept], count[kept]
    mean = np.nansum(y, axis=0) / count
    return x, mean, np.sqrt(np.nansum((y - mean) ** 2, axis=0) / count)


def thin(x: np.ndarray, y: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `points` points of a line: the lowest and highest of each stretch, so that no spike is lost."""
    if x.size <= points:
        return x, y
    kept = {0, x.size - 1}
    for stretch in np.array_split(np.arange(x.size), points // 2 - 1):
        kept |= {int(stretch[np.argmin(y[stretch])]), int(stretch[np.argmax(y[stretch])])}
    index = np.array(sorted(kept))
    return x[index], y[index]
