"""Tables of SEED's benchmarks."""

from collections.abc import Callable
from functools import partial

from benchmarks.tables.common import Row, drills, rows_of, short, table, where


def _wire() -> str:
    rows = [row for row in rows_of("latency") if row["cell"] == "wire"]
    lines = [[row["contestant"], f"{1e3 * row['latency']:.3f}", f"{row['of_raw']:.2f}"] for row in rows]
    return table(["server", "ms", "of plain gRPC"], lines) + where(rows)


def _latency() -> str:
    rows = [row for row in rows_of("latency") if row["cell"] != "wire"]
    cells = {(row["cell"], row["contestant"]): f"{1e3 * row['latency']:.2f}" for row in rows}
    names = list(dict.fromkeys(cell for cell, _ in cells))
    lines = [[name.split("/")[1], *(cells[name, who] for who in ("of its own", "of a server"))] for name in names]
    return table(["filters", "a network of its own, ms", "a server, ms"], lines) + where(rows)


def _throughput() -> str:
    rows = [row for row in rows_of("throughput") if not row["cell"].startswith("server")]
    others = list(rows[0]["of"]) if rows else []
    lines = [
        [row["cell"], row["contestant"], short(row["median"]), *(f"{row['of'][one]:.2f}" for one in others)]
        for row in rows
    ]
    return table(["environment", "who", "steps/s", *(f"of {one}" for one in others)], lines) + where(rows)


def _server() -> str:
    rows = [row for row in rows_of("throughput") if row["cell"].startswith("server")]
    rates = {tuple(row["cell"].split("/")[1:]): short(row["median"]) for row in rows}
    actors, envs = (list(dict.fromkeys(key[i] for key in rates)) for i in range(2))
    lines = [[one.replace("1 actors", "1 actor"), *(rates[one, other] for other in envs)] for one in actors]
    return table(["steps/s", *envs], lines) + where(rows)


def _replay() -> str:
    rows = rows_of("replay")
    found = {(row["cell"], row["contestant"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(who for _, who in found):
        inserted, sampled = (found[what, name] for what in ("insert", "sample"))
        size = [f"{sampled['bytes_per_frame']:.0f}", f"{sampled['of_frame']:.2f}"]
        lines.append([name, short(inserted["median"]), short(sampled["median"]), *size])
    head = ["replay", "pieces of 40 steps in/s", "sequences of 120 steps out/s", "bytes a step", "of its frame"]
    return table(head, lines) + where(rows)


def _cost() -> str:
    rows = rows_of("cost")
    found = {(row["cell"], row["contestant"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(cell for cell, _ in found):
        near, far = (found[name, who] for who in ("near", "SEED"))
        cells = [text for row in (near, far) for text in _cost_of(row)]
        lines.append([name, *cells, f"{near['dollars_per_billion'] / far['dollars_per_billion']:.2f}"])
    head = ["filters", "near, frames/s", "near, dollars", "SEED, frames/s", "SEED, dollars", "ratio"]
    hour = f"\n\n{rows[0]['dollars_per_hour']:.3f} dollars an hour." if rows else ""
    return table(head, lines) + hour + where(rows)


def _cost_of(row: Row) -> list[str]:
    return [short(row["frames_per_second"]), f"{row['dollars_per_billion']:.0f}"]


def _paper() -> str:
    rows = rows_of("paper")
    lines = [
        [
            str(row["updates"]),
            f"{row['updates_per_second']:.3f}",
            short(4 * row["steps_per_second"]),
            short(row["projected_hours"]),
        ]
        for row in rows
    ]
    return table(["updates made", "updates/s", "frames/s", "hours for 40 billion frames"], lines) + where(rows)


def _stability() -> str:
    rows = rows_of("stability")
    lines = []
    for name in dict.fromkeys(row["contestant"] for row in rows):
        values = sorted(row["median"] for row in rows if row["contestant"] == name)
        quarter = values[: max(len(values) // 4, 1)]
        mean, low = sum(values) / len(values), sum(quarter) / len(quarter)
        lines.append([name, f"{mean:.0f}", f"{low:.0f}", f"{sum(v > 400 for v in values)} of {len(values)}"])
    picture = "\n\n![Returns, sorted](curves/stability.png)" if rows else ""
    return table(["inference", "mean return", "of the lowest quarter", "above 400"], lines) + where(rows) + picture


TABLES: dict[str, Callable[[], str]] = {
    "drills": partial(drills, "drills"),
    "wire": _wire,
    "latency": _latency,
    "throughput": _throughput,
    "server": _server,
    "replay": _replay,
    "cost": _cost,
    "paper": _paper,
    "stability": _stability,
}
