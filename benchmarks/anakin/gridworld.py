"""A small network in a grid world, beside the paper's 5 million steps/s on 8 TPU cores (Hessel et al. 2021)."""

from collections.abc import Sequence
from typing import Any

from benchmarks.anakin.peers import AGENT
from benchmarks.common import (
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

PAPER = 5e6


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("gridworld", __doc__ or "", rounds=5)
    options.add_argument("--preset", default="dense", help="of boonta:gridworld (default dense)")
    options.add_argument("--envs", type=numbers, help="environments over all devices (default 64,256,1024,4096)")
    options.add_argument("--devices", type=numbers, help="device counts (default: 1 and what the library would choose)")
    options.add_argument("--hidden", type=numbers, default=[32, 32], help="widths of the network (default 32,32)")
    options.add_argument("--unroll", type=int, default=32, help="steps of a trajectory (default 32)")
    options.add_argument("--steps", type=int, default=1 << 21, help="environment steps of one run (default 2097152)")
    args = parse(options, argv)
    sizes = args.envs or ([8] if args.quick else [64, 256, 1024, 4096])
    # One pass over the data, as fast learners of that kind do; `share` leaves one body to run.
    agent = AGENT | {"hidden": args.hidden, "unroll": args.unroll, "epochs": 1, "minibatches": 4, "share": True}
    rows: list[Row] = []
    result = table(
        f"PPO with a {'x'.join(map(str, args.hidden))} network in boonta:gridworld ({args.preset})",
        "environments", "devices", "steps/s", "min", "max", "of the paper's 5M", "compile s", "peak MB",
    )  # fmt: skip
    for envs in sizes:
        notes.print(f"{envs} environments")
        counts = args.devices or sorted({devices_for(envs)} if args.quick else {1, devices_for(envs)})
        base: dict[str, Any] = {"kind": "ours", "environment": "boonta:gridworld", "envs": envs, "agent": agent}
        base |= {"environment_settings": {"preset": args.preset}, "steps": 0 if args.quick else args.steps}
        outcomes = compete({f"ours@{n}": base | {"devices": n} for n in counts}, args.rounds, hurry=args.quick)
        for name, outcome in outcomes.items():
            more = {"paper": PAPER, "of_paper": outcome.rate / PAPER}
            rows.append(line := outcome_row(args, f"{args.preset}/{envs}", name, outcome, **more))
            result.add_row(
                str(envs),
                str(line["devices"]),
                *(short(line[key]) for key in ("median", "min", "max")),
                f"{line['of_paper']:.1%}",
                f"{line['compile_seconds']:.1f}",
                f"{line['peak_rss_mb']:.0f}",
            )
    facts = machine()
    remark = (
        f"The paper: 5M steps/s, {PAPER / 8 / 1e3:.0f}k for each of 8 TPU cores; its network and grid are not given. "
        f"Here: {facts['cores']} cores of {facts['cpu']}, on {facts['backend']}."
    )
    return finish(args, rows, result, remarks=[remark])


if __name__ == "__main__":
    main()
