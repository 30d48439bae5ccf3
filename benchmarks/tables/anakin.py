"""Tables of Anakin's benchmarks."""

from collections.abc import Callable

from benchmarks.tables.common import Row, rows_of, short, table, where


def _cells() -> dict[str, dict[str, Row]]:
    """The chosen row of each contestant, by cell of the benchmark of peers."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows_of("peers"):
        if row["chosen"]:
            cells.setdefault(row["cell"], {})[_kind(row)] = row
    return cells


def _peers() -> str:
    lines = []
    for cell, here in _cells().items():
        ours = here["ours"]
        ceiling = next(
            row for row in rows_of("peers") if row["cell"] == cell and row["contestant"] == f"ceiling@{ours['devices']}"
        )
        peers = [here[name] for name in ("rejax", "purejaxrl") if name in here]
        best = max((row["median"] for row in peers), default=float("nan"))
        lines.append(
            [
                cell.replace("/", " × "),
                f"**{short(ours['median'])}** on {ours['devices']}",
                *(f"{short(row['median'])}" for row in peers),
                f"**{ours['median'] / best:.2f}**",
                f"{short(ceiling['median'])}, {ours['median'] / ceiling['median']:.1%}",
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
    return table(head, lines) + where(rows_of("peers"))


def _summary() -> str:
    lines = []
    for cell, here in _cells().items():
        best = max(here[name]["median"] for name in ("rejax", "purejaxrl") if name in here)
        ours = here["ours"]["median"]
        mine = f"{short(ours)}, {here['ours']['devices']}"
        lines.append([cell.replace("/", " × ") + " environments", mine, short(best), f"{ours / best:.2f}"])
    head = ["PPO, steps/s on two cores", "Boonta, devices", "best of rejax and PureJaxRL, one device", "ratio"]
    return table(head, lines)


def _scaling() -> str:
    rows = rows_of("scaling")
    apart = {row["devices"]: row for row in rows if row["contestant"] == "apart"}
    lines = [
        [
            str(row["devices"]),
            short(row["median"]),
            f"{row['of_linear']:.0%}",
            short(apart[row["devices"]]["median"]) if row["devices"] in apart else "",
            f"{row['collectives']:.0%}" if row["collectives"] is not None else "",
        ]
        for row in rows
        if row["contestant"] == "together"
    ]
    head = ["devices", "steps/s together", "of linear", "steps/s apart, never meeting", "collectives cost"]
    return table(head, lines) + where(rows)


def _gridworld() -> str:
    rows = rows_of("gridworld")
    lines = [
        [row["cell"].replace("/", ", "), str(row["devices"]), short(row["median"]), f"{row['of_paper']:.1%}"]
        for row in rows
    ]
    return table(["task, environments", "devices", "steps/s", "of the paper's 5M on 8 TPU cores"], lines) + where(rows)


def _memory() -> str:
    rows = rows_of("memory")
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
    return table(head, lines) + fit + where(rows)


def _convolution() -> str:
    rows = rows_of("convolution")
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        direct, matmul = (
            next(row["median"] for row in rows if (row["cell"], row["contestant"]) == (cell, kind))
            for kind in ("direct", "matmul")
        )
        lines.append([cell.replace("/", ", "), short(direct), short(matmul), f"{matmul / direct:.2f}"])
    head = ["network, what, images in a block", "direct, images/s", "matrix product, images/s", "ratio"]
    return table(head, lines) + where(rows)


def _kind(row: Row) -> str:
    return row["contestant"].split("@")[0]


TABLES: dict[str, Callable[[], str]] = {
    "peers": _peers,
    "summary": _summary,
    "scaling": _scaling,
    "gridworld": _gridworld,
    "memory": _memory,
    "convolution": _convolution,
}
