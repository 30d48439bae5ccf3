"""What a billion frames cost (the paper's tables 3 to 5): speed measured here, prices given as options.

Whole runs of V-trace on Pong with IMPALA's network of 1, 2 and 4 times the filters: SEED, which infers for all
environments together, against inference near the environment, where each actor asks a network of its own about its one
environment and takes parameters before an unroll (Sebulba with a thread for each environment,
`architecture.refresh=unroll`). The default prices are the paper's table 3, of September 2019.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, machine, outcome_row, parse, parser, short, table
from benchmarks.seed.latency import FILTERS

MODULE = "benchmarks.seed.contestants"
WORDS = ["vtrace", "ale:Pong", "agent.body=impala_resnet", "agent.batch=8", "agent.unroll=20"]
REPEAT = 4  # frames of a step


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("cost", __doc__ or "", rounds=3, module="seed")
    options.add_argument("--core", type=float, default=0.0475, help="dollars an hour for a core (default: 0.0475)")
    options.add_argument("--accelerator", type=float, default=1.46, help="likewise for an accelerator (default: 1.46)")
    options.add_argument("--actors", type=int, default=8, help="environments (default: 8)")
    args = parse(options, argv)
    there = machine()
    dollars = there["cores"] * args.core + (there["devices"] * args.accelerator if there["backend"] != "cpu" else 0.0)
    rows = []
    shown = table(
        f"A billion frames at {dollars:.3f} dollars an hour", "filters", "near, frames/s", "near, dollars",
        "SEED, frames/s", "SEED, dollars", "ratio",
    )  # fmt: skip
    for name, times in FILTERS.items():
        channels = f"agent.channels=[{16 * times},{32 * times},{32 * times}]"
        near = ["architecture.envs=1", f"architecture.threads={args.actors}", "architecture.refresh=unroll"]
        base = {"module": MODULE, "kind": "ours", "iterations": 1 if args.quick else max(4, 16 // times)}
        tasks: dict[str, dict[str, Any]] = {
            "near": base | {"on": "sebulba", "words": [*WORDS, channels, *near]},
            "SEED": base | {"on": "seed", "words": [*WORDS, channels, f"architecture.envs={args.actors}"]},
        }
        outcomes = compete(tasks, args.rounds)
        frames = {one: REPEAT * outcome.rate for one, outcome in outcomes.items()}
        cost = {one: dollars / 3600 / rate * 1e9 for one, rate in frames.items()}
        for one, outcome in outcomes.items():
            more = {"frames_per_second": frames[one], "dollars_per_billion": cost[one], "dollars_per_hour": dollars}
            rows.append(outcome_row(args, name, one, outcome, **more))
        cells = [cell for one in frames for cell in (short(frames[one]), f"{cost[one]:.0f}")]
        shown.add_row(name, *cells, f"{cost['near'] / cost['SEED']:.2f}")
        if args.quick:
            break
    return finish(args, rows, shown)


if __name__ == "__main__":
    main()
