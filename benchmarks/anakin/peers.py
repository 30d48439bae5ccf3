"""PPO beside its peers: ours, rejax, PureJaxRL, and a random policy in the same environment as the ceiling.

Each is a process of its own that compiles once; then they take turns, so that noise hits all alike. Settings are equal;
peers run as they come. Our stream has one idle act per episode, which is not counted as a step.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import (
    Outcome,
    Row,
    compete,
    devices_for,
    finish,
    machine,
    notes,
    numbers,
    outcome_row,
    parse,
    parser,
    short,
    table,
)

AGENT: dict[str, Any] = {
    "body": "mlp",
    "hidden": [64, 64],
    "activation": "tanh",
    "unroll": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "anneal": True,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "entropy_cost": 0.01,
    "value_cost": 0.5,
    "max_grad_norm": 0.5,
}
CELLS = (
    ("CartPole-v1", 4),
    ("CartPole-v1", 64),
    ("CartPole-v1", 1024),
    ("Breakout-MinAtar", 64),
    ("Breakout-MinAtar", 1024),
)
STEPS = {"CartPole-v1": 1 << 20, "Breakout-MinAtar": 1 << 19}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("peers", __doc__ or "", rounds=5)
    options.add_argument("--peer-python", help="interpreter of the environment that rejax and PureJaxRL run in")
    options.add_argument("--purejaxrl", help="a checkout of PureJaxRL")
    options.add_argument(
        "--devices",
        type=numbers,
        help="device counts of ours, of which the fastest counts (default: the library's choice; for few envs 1,2)",
    )
    options.add_argument(
        "--cells", help="only cells whose name contains one of these words, as in CartPole-v1/64,MinAtar"
    )
    options.add_argument("--steps", type=int, help="environment steps of one run")
    args = parse(options, argv)
    cells = CELLS[:1] if args.quick else CELLS
    if args.cells:
        cells = tuple(cell for cell in cells if any(word in f"{cell[0]}/{cell[1]}" for word in args.cells.split(",")))
    if not args.peer_python:
        notes.print("[bold red]NO PEERS: without --peer-python only ours and the ceiling run")
    elif not args.purejaxrl:
        notes.print("[bold red]PureJaxRL is missing: give its checkout with --purejaxrl")
    rows: list[Row] = []
    result = table(
        "PPO, steps/s that an agent chose (median of the rounds)",
        "cell", "contestant", "devices", "steps/s", "min", "max", "with idle acts", "ours is", "compile s", "peak MB",
    )  # fmt: skip
    for environment, envs in cells:
        notes.print(f"{environment} x {envs}")
        tasks = _tasks(args, environment, envs)
        pythons: dict[str, str] = dict.fromkeys(("rejax", "purejaxrl"), args.peer_python or "")
        outcomes = compete(tasks, args.rounds, pythons, args.quick)
        chosen = _chosen(outcomes)
        ours = next(outcomes[name].rate for name in chosen if outcomes[name].task["kind"] == "ours")
        for name, outcome in outcomes.items():
            more = {"chosen": name in chosen, "library_chooses": devices_for(envs)}
            more |= {"source": _digest(args.purejaxrl)} if name == "purejaxrl" else {}
            rows.append(line := outcome_row(args, f"{environment}/{envs}", name, outcome, **more))
            result.add_row(
                line["cell"],
                f"{name} *" if name in chosen and outcome.task["kind"] == "ours" else name,
                str(line["devices"]),
                *(short(line[key]) for key in ("median", "min", "max", "median_with_idle")),
                f"{ours / line['median']:.3g}x",
                f"{line['compile_seconds']:.1f}",
                f"{line['peak_rss_mb']:.0f}",
                style=None if name in chosen else "dim",
                end_section=name == list(outcomes)[-1],
            )
    remarks = ["* the fastest of our device counts; peers run as they come, which is on one device."]
    return finish(args, rows, result, remarks=remarks)


def _tasks(args: Any, environment: str, envs: int) -> dict[str, dict[str, Any]]:
    steps = args.steps or (0 if args.quick else STEPS[environment])
    base = {"environment": f"gymnax:{environment}", "envs": envs, "steps": steps, "agent": AGENT, "devices": 1}
    choice = devices_for(envs)
    # Where the library takes one device because there are few environments, two show what it costs or gains.
    both = choice == 1 and machine()["backend"] == "cpu" and machine()["cores"] > 1 and envs % 2 == 0 and not args.quick
    counts = args.devices or ([1, 2] if both else [choice])
    tasks = {f"ours@{n}": base | {"kind": "ours", "devices": n} for n in counts}
    if args.peer_python:
        tasks["rejax"] = base | {"kind": "rejax"}
        if args.purejaxrl:
            tasks["purejaxrl"] = base | {"kind": "purejaxrl", "path": str(Path(args.purejaxrl).resolve())}
    return tasks | {f"ceiling@{n}": base | {"kind": "ceiling", "devices": n} for n in counts}


def _chosen(outcomes: dict[str, Outcome]) -> list[str]:
    """Of each kind of contestant, the fastest."""
    kinds = {outcome.task["kind"] for outcome in outcomes.values()}
    return [
        max((name for name in outcomes if outcomes[name].task["kind"] == kind), key=lambda name: outcomes[name].rate)
        for kind in kinds
    ]


def _digest(path: str) -> str:
    """Which PureJaxRL it was: a hash of the files that run."""
    files = (Path(path, "purejaxrl", name).read_bytes() for name in ("ppo.py", "wrappers.py"))
    return f"sha256:{hashlib.sha256(b''.join(files)).hexdigest()[:16]}"


if __name__ == "__main__":
    main()
