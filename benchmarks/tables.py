"""Write the tables of docs/benchmarks.md and of the README from the results that the repository keeps.

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else of the page is left alone.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from boonta.experiments.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
Row = dict[str, Any]


def main() -> None:
    """Bring every page up to date."""
    for page in PAGES:
        write_text(page, render(page.read_text("utf-8")))


def render(text: str) -> str:
    """The page with its tables made anew; a table whose results are not there says so."""

    def one(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{TABLES[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin ([\w-]+) -->.*?<!-- end \1 -->", one, text, flags=re.DOTALL)


def _rows(name: str) -> list[Row]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def _learning() -> list[Row]:
    """The summaries of learning runs, with their curves."""
    found = []
    for file in sorted((RESULTS / "learning").glob("*.jsonl")):
        first, *curve = map(json.loads, file.read_text("utf-8").splitlines())
        found.append(first["summary"] | {"curve": curve})
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Not measured yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _where(rows: Sequence[Row]) -> str:
    """The machine and the versions that the rows agree on."""
    if not rows:
        return ""
    machine, versions = rows[0]["machine"], rows[0]["versions"]
    processor = machine.get("processor") or machine.get("cpu")
    commits = ", ".join(
        f"`{commit[:12]}{'+' * commit.endswith('+')}`" for commit in dict.fromkeys(row["commit"] for row in rows)
    )
    return f"\n\n{processor}, {machine['cores']} cores, JAX {versions['jax']}; measured at {commits}."


def _short(number: float) -> str:
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number / 1e3:.0f}k" if number >= 1e4 else f"{number:.0f}"


def _kind(row: Row) -> str:
    return row["contestant"].split("@")[0]


def _cells() -> dict[str, dict[str, Row]]:
    """The chosen row of each contestant, by cell of the benchmark of peers."""
    cells: dict[str, dict[str, Row]] = {}
    for row in _rows("peers"):
        if row["chosen"]:
            cells.setdefault(row["cell"], {})[_kind(row)] = row
    return cells


def _peers() -> str:
    lines = []
    for cell, here in _cells().items():
        ours = here["ours"]
        ceiling = next(
            row for row in _rows("peers") if row["cell"] == cell and row["contestant"] == f"ceiling@{ours['devices']}"
        )
        peers = [here[name] for name in ("rejax", "purejaxrl") if name in here]
        best = max((row["median"] for row in peers), default=float("nan"))
        lines.append(
            [
                cell.replace("/", " × "),
                f"**{_short(ours['median'])}** on {ours['devices']}",
                *(f"{_short(row['median'])}" for row in peers),
                f"**{ours['median'] / best:.2f}**",
                f"{_short(ceiling['median'])}, {ours['median'] / ceiling['median']:.1%}",
                " / ".join(f"{row['compile_seconds']:.0f}" for row in (ours, *peers)),
                " / ".join(f"{row['peak_rss_mb']:.0f}" for row in (ours, *peers)),
            ]
        )
    head = [
        "cell",
        "ours, devices",
        "rejax",
        "PureJaxRL",
        "ratio to the best",
        "random policy, our share",
        "compile s",
        "MB",
    ]
    return _table(head, lines) + _where(_rows("peers"))


def _summary() -> str:
    lines = []
    for cell, here in _cells().items():
        best = max(here[name]["median"] for name in ("rejax", "purejaxrl") if name in here)
        ours = here["ours"]["median"]
        mine = f"{_short(ours)}, {here['ours']['devices']}"
        lines.append([cell.replace("/", " × ") + " environments", mine, _short(best), f"{ours / best:.2f}"])
    head = ["PPO, steps/s on two cores", "Boonta, devices", "best of rejax and PureJaxRL, one device", "ratio"]
    return _table(head, lines)


def _curves() -> str:
    lines = [
        [
            f"[{row['name']}](curves/{row['name']}.png)",
            f"`{row['command']}`" + (f", seeds 0 to {row['runs'] - 1}" if row.get("runs", 1) > 1 else ""),
            f"{row['eval_return_mean']:.4g}"
            + (f" ± {row['eval_return_std_over_members']:.2g}" if len(row["members"]) > 1 else ""),
            ", ".join(f"{value:.4g}" for value in row["members"]),
            "" if row["bar"] is None else f"{row['bar']:g}",
            _first(row),
            f"{row['seconds']:.0f}",
        ]
        for row in _learning()
    ]
    head = [
        "recipe and curve",
        "command",
        "mean ± spread over members",
        "members",
        "aim",
        "first there",
        "seconds for all",
    ]
    return _table(head, lines)


def _first(row: Row) -> str:
    """When an evaluation first reached the aim, in the run that was soonest."""
    if row["bar"] is None:
        return ""
    there = [at for at in row["curve"] if (at.get("eval/return_mean") or -1e300) >= row["bar"]]
    if not there:
        return "never"
    at = min(there, key=lambda at: (at["env_steps"], at["seconds"]))
    return f"{_short(at['env_steps'])} steps, {at['seconds']:.0f} s"


def _matrix() -> str:
    found = {row["name"]: row for row in _learning()}
    shown = {
        "CartPole": "cartpole", "CartPole without velocities": "blind-cartpole", "HalfCheetah": "halfcheetah",
        "Memory of 20 steps": "memory", "MinAtar Breakout": "minatar-breakout", "Pong": "pong", "Breakout": "breakout",
    }  # fmt: skip

    def told(prefix: str, agent: str) -> str:
        cells = []
        for task, name in shown.items():
            if row := found.get(f"{prefix}{agent}-{name}"):
                seeds = len(row["members"])
                mean = row["eval_return_mean"]
                cells.append(f"{task} {mean:.{0 if abs(mean) >= 10 else 1}f} on {seeds} seed{'s' * (seeds > 1)}")
        return "; ".join(cells) or "not measured yet"

    places = ("", "sebulba-", "seed-")
    lines = [[f"`{agent}`", *(told(place, agent) for place in places)] for agent in ("ppo", "vtrace", "dqn", "r2d2")]
    return _table(["agent, greedy return after training", "anakin", "sebulba", "seed"], lines)


def _pong() -> str:
    lines = [
        [
            row["cell"],
            row["contestant"].replace("_", " "),
            _short(row["median"]),
            f"{row['of_limit']:.0%}" if row["contestant"] in ("ours", "sample_factory") else "",
            f"{row['of_peer']:.2f}" if row["of_peer"] and row["contestant"] == "ours" else "",
        ]
        for row in _rows("pong")
    ]
    return _table(["cell", "contestant", "steps/s", "of our parts in a row", "of Sample Factory"], lines) + _where(
        _rows("pong")
    )


def _shapes() -> str:
    rows = _rows("shapes")
    lines = [[*row["cell"].split("/"), _short(row["median"]), f"{row['of_first']:.2f}"] for row in rows]
    picture = "\n\n![Steps/s by shape](curves/shapes.png)" if rows else ""
    return _table(["what", "how many", "steps/s", "of the first"], lines) + _where(rows) + picture


def _soak() -> str:
    rows = _rows("soak")
    lines = [
        [f"{row['cell']}, {row['unit']}", *(f"{row[key]:.0f}" for key in ("middle", "last", "max")), _yes(row["flat"])]
        for row in rows
    ]
    about = f"\n\n{rows[0]['minutes']:.0f} minutes." if rows else ""
    return _table(["what", "middle third", "last third", "at most", "flat"], lines) + about + _where(rows)


def _efficiency() -> str:
    rows = _rows("efficiency")
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
    return _table(head, lines) + _where(rows) + picture


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _scaling() -> str:
    rows = _rows("scaling")
    apart = {row["devices"]: row for row in rows if row["contestant"] == "apart"}
    lines = [
        [
            str(row["devices"]),
            _short(row["median"]),
            f"{row['of_linear']:.0%}",
            _short(apart[row["devices"]]["median"]) if row["devices"] in apart else "",
            f"{row['collectives']:.0%}" if row["collectives"] is not None else "",
        ]
        for row in rows
        if row["contestant"] == "together"
    ]
    head = ["devices", "steps/s together", "of linear", "steps/s apart, never meeting", "collectives cost"]
    return _table(head, lines) + _where(rows)


def _gridworld() -> str:
    rows = _rows("gridworld")
    lines = [
        [row["cell"].replace("/", ", "), str(row["devices"]), _short(row["median"]), f"{row['of_paper']:.1%}"]
        for row in rows
    ]
    return _table(["task, environments", "devices", "steps/s", "of the paper's 5M on 8 TPU cores"], lines) + _where(
        rows
    )


def _memory() -> str:
    rows = _rows("memory")
    lines = [
        [
            row["cell"].replace("x", " × "),
            f"{row['envs'] * row['unroll'] / 1e3:.0f}k",
            *(f"{row[key]:.0f}" for key in ("median", "fitted_mb", "trajectory_mb", "planned_mb")),
        ]
        for row in rows
        if row["cell"] != "fit"
    ]
    head = ["environments × unroll", "env-steps", "peak MB", "on the line", "trajectories MB", "XLA's plan MB"]
    fit = "".join(
        f"\n\nThe line: {row['fixed_mb']:.0f} MB + {row['median']:.0f} bytes per env-step, of which a trajectory holds "
        f"{row['trajectory_bytes_per_env_step']:.0f}; root mean square of the residual {row['residual_mb']:.1f} MB."
        for row in rows
        if row["cell"] == "fit"
    )
    return _table(head, lines) + fit + _where(rows)


def _convolution() -> str:
    rows = _rows("convolution")
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        direct, matmul = (
            next(row["median"] for row in rows if (row["cell"], row["contestant"]) == (cell, kind))
            for kind in ("direct", "matmul")
        )
        lines.append([cell.replace("/", ", "), _short(direct), _short(matmul), f"{matmul / direct:.2f}"])
    head = ["network, what, images in a block", "direct, images/s", "matrix product, images/s", "ratio"]
    return _table(head, lines) + _where(rows)


def _drills() -> str:
    rows = _rows("drills")
    lines = []
    for row in rows:
        told = ", ".join(
            f"{key.replace('_', ' ')} {value:.3g}"
            for key, value in row["facts"].items()
            if isinstance(value, int | float)
        )
        lines.append([row["cell"], told, f"{row['median']:.0f}", f"{row['seconds_to_bar']:.0f}"])
    head = ["what happens", "what was counted", "return in evaluation after it", "seconds to that"]
    return _table(head, lines) + _where(rows)


def _wire() -> str:
    rows = [row for row in _rows("latency") if row["cell"] == "wire"]
    lines = [[row["contestant"], f"{1e3 * row['latency']:.3f}", f"{row['of_raw']:.2f}"] for row in rows]
    return _table(["server", "ms", "of plain gRPC"], lines) + _where(rows)


def _latency() -> str:
    rows = [row for row in _rows("latency") if row["cell"] != "wire"]
    cells = {(row["cell"], row["contestant"]): f"{1e3 * row['latency']:.2f}" for row in rows}
    names = list(dict.fromkeys(cell for cell, _ in cells))
    lines = [[name.split("/")[1], *(cells[name, who] for who in ("of its own", "of a server"))] for name in names]
    return _table(["filters", "a network of its own, ms", "a server, ms"], lines) + _where(rows)


def _throughput() -> str:
    rows = [row for row in _rows("throughput") if not row["cell"].startswith("server")]
    others = list(rows[0]["of"]) if rows else []
    lines = [
        [row["cell"], row["contestant"], _short(row["median"]), *(f"{row['of'][one]:.2f}" for one in others)]
        for row in rows
    ]
    return _table(["environment", "who", "steps/s", *(f"of {one}" for one in others)], lines) + _where(rows)


def _server() -> str:
    rows = [row for row in _rows("throughput") if row["cell"].startswith("server")]
    rates = {tuple(row["cell"].split("/")[1:]): _short(row["median"]) for row in rows}
    actors, envs = (list(dict.fromkeys(key[i] for key in rates)) for i in range(2))
    lines = [[one, *(rates[one, other] for other in envs)] for one in actors]
    return _table(["steps/s", *envs], lines) + _where(rows)


def _replay() -> str:
    rows = _rows("replay")
    found = {(row["cell"], row["contestant"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(who for _, who in found):
        inserted, sampled = (found[what, name] for what in ("insert", "sample"))
        size = [f"{sampled['bytes_per_frame']:.0f}", f"{sampled['of_frame']:.2f}"]
        lines.append([name, _short(inserted["median"]), _short(sampled["median"]), *size])
    head = ["replay", "pieces of 40 steps in/s", "sequences of 120 steps out/s", "bytes a step", "of its frame"]
    return _table(head, lines) + _where(rows)


def _cost() -> str:
    rows = _rows("cost")
    found = {(row["cell"], row["contestant"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(cell for cell, _ in found):
        near, far = (found[name, who] for who in ("near", "SEED"))
        cells = [text for row in (near, far) for text in _cost_of(row)]
        lines.append([name, *cells, f"{near['dollars_per_billion'] / far['dollars_per_billion']:.2f}"])
    head = ["filters", "near, frames/s", "near, dollars", "SEED, frames/s", "SEED, dollars", "ratio"]
    hour = f"\n\n{rows[0]['dollars_per_hour']:.3f} dollars an hour." if rows else ""
    return _table(head, lines) + hour + _where(rows)


def _paper() -> str:
    rows = _rows("paper")
    lines = [
        [
            str(row["updates"]),
            f"{row['updates_per_second']:.3f}",
            _short(4 * row["steps_per_second"]),
            _short(row["projected_hours"]),
        ]
        for row in rows
    ]
    return _table(["updates made", "updates/s", "frames/s", "hours for 40 billion frames"], lines) + _where(rows)


def _cost_of(row: Row) -> list[str]:
    return [_short(row["frames_per_second"]), f"{row['dollars_per_billion']:.0f}"]


def _stability() -> str:
    rows = _rows("stability")
    lines = []
    for name in dict.fromkeys(row["contestant"] for row in rows):
        values = sorted(row["median"] for row in rows if row["contestant"] == name)
        quarter = values[: max(len(values) // 4, 1)]
        mean, low = sum(values) / len(values), sum(quarter) / len(quarter)
        lines.append([name, f"{mean:.0f}", f"{low:.0f}", f"{sum(v > 400 for v in values)} of {len(values)}"])
    picture = "\n\n![Returns, sorted](curves/stability.png)" if rows else ""
    return _table(["inference", "mean return", "of the lowest quarter", "above 400"], lines) + _where(rows) + picture


TABLES: dict[str, Callable[[], str]] = {
    "peers": _peers,
    "summary": _summary,
    "matrix": _matrix,
    "curves": _curves,
    "scaling": _scaling,
    "gridworld": _gridworld,
    "memory": _memory,
    "convolution": _convolution,
    "pong": _pong,
    "shapes": _shapes,
    "efficiency": _efficiency,
    "soak": _soak,
    "drills": _drills,
    "wire": _wire,
    "latency": _latency,
    "throughput": _throughput,
    "server": _server,
    "replay": _replay,
    "cost": _cost,
    "paper": _paper,
    "stability": _stability,
}

if __name__ == "__main__":
    main()
