"""More devices, each with the same work, and what their meetings cost.

The same program runs twice on n devices: as one agent that n devices learn together, and as n agents that never meet.
The second does the same work without collectives; the difference is their price. On a CPU the devices are virtual and
share its cores: beyond as many devices as cores nothing can get faster, and what this measures there is overhead.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.anakin.peers import AGENT
from benchmarks.common import Row, compete, finish, machine, numbers, outcome_row, parse, parser, short, table


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("scaling", __doc__ or "", rounds=5)
    options.add_argument("--devices", type=numbers, help="device counts (default 1,2,4,8)")
    options.add_argument("--environment", default="gymnax:CartPole-v1", help="ENV (default gymnax:CartPole-v1)")
    options.add_argument("--envs", type=int, default=64, help="environments of each device (default 64)")
    options.add_argument("--steps", type=int, default=1 << 20, help="environment steps of each device (default 2^20)")
    args = parse(options, argv)
    most = 8 if machine()["backend"] == "cpu" else machine()["devices"]
    counts = args.devices or [n for n in ((1, 2) if args.quick else (1, 2, 4, 8)) if n <= most]
    if args.quick:
        args.envs, args.steps = 4, 0
    tasks: dict[str, dict[str, Any]] = {}
    for n in counts:
        base = {"kind": "ours", "environment": args.environment, "devices": n, "steps": n * args.steps, "agent": AGENT}
        tasks[f"together@{n}"] = base | {"envs": n * args.envs, "population": 1}
        if n > 1:
            tasks[f"apart@{n}"] = base | {"envs": args.envs, "population": n}
    outcomes = compete(tasks, args.rounds, hurry=args.quick)

    first = counts[0]
    alone = outcomes[f"together@{first}"].rate / first
    rows: list[Row] = []
    result = table(
        f"PPO, {args.environment}, {args.envs} environments on each device: steps/s",
        "devices", "together", "min", "max", "of linear", "apart", "collectives cost", "compile s", "peak MB",
    )  # fmt: skip
    for n in counts:
        together, apart = outcomes[f"together@{n}"], outcomes.get(f"apart@{n}")
        overhead = 1 - together.rate / apart.rate if apart else None
        more = {"of_linear": together.rate / (n * alone), "collectives": overhead}
        rows.append(line := outcome_row(args, f"devices/{n}", "together", together, **more))
        if apart:
            rows.append(outcome_row(args, f"devices/{n}", "apart", apart, of_linear=apart.rate / (n * alone)))
        result.add_row(
            str(n),
            *(short(line[key]) for key in ("median", "min", "max")),
            f"{line['of_linear']:.0%}",
            short(apart.rate) if apart else "-",
            "-" if overhead is None else f"{overhead:.1%}",
            f"{line['compile_seconds']:.1f}",
            f"{line['peak_rss_mb']:.0f}",
        )
    remarks = []
    if machine()["backend"] == "cpu":
        cores = machine()["cores"]
        remarks.append(
            f"The devices are virtual and share {cores} cores: at most {cores}x of one device can be gained. Beyond "
            f"{cores} devices, read only the price of the collectives, which there includes waiting for a core."
        )
    return finish(args, rows, result, remarks=remarks)


if __name__ == "__main__":
    main()
