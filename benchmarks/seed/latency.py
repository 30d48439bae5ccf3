"""How long an environment waits for its action: over the wire alone, and with inference near and far.

The wire: one client's step of Pong's observations and back, through our server and through plain gRPC, which sends the
same bytes and looks at nothing. Inference: the paper's table 13, with IMPALA's network of 1, 2 and 4 times the filters:
an actor that asks a network of its own about its one environment, against actors that ask a server.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.common import Row, compete, finish, outcome_row, parse, parser, table

MODULE = "benchmarks.seed.contestants"
FILTERS = {"default": 1, "medium": 2, "large": 4}
NETWORK = ["vtrace", "ale:Pong", "agent.body=impala_resnet", "agent.batch=4", "agent.unroll=20"]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("latency", __doc__ or "", rounds=5, module="seed")
    options.add_argument("--clients", type=int, default=2, help="actors that ask the server at a time")
    options.add_argument("--count", type=int, default=4, help="environments of each")
    args = parse(options, argv)
    rows: list[Row] = []
    wire = {
        f"{server} {kind}": {"module": MODULE, "kind": "wire", "server": server, "to": kind, "count": 1}
        for kind in ("unix", "tcp")
        for server in ("ours", "raw")
    }
    outcomes = compete(wire, args.rounds)
    shown = table("A step of one environment there and back", "", "ms", "of plain gRPC")
    for name, outcome in outcomes.items():
        raw = outcomes[f"raw {name.split()[1]}"]
        times = [_latency(one) for one in (outcome, raw)]
        rows.append(outcome_row(args, "wire", name, outcome, latency=times[0], of_raw=times[0] / times[1]))
        shown.add_row(name, f"{1e3 * times[0]:.3f}", f"{times[0] / times[1]:.2f}")
    near_and_far = table("From observation to action (table 13)", "filters", "of its own, ms", "of a server, ms")
    for name, times in {} if args.quick else FILTERS.items():
        channels = f"agent.channels=[{16 * times},{32 * times},{32 * times}]"
        envs = f"architecture.envs={args.clients * args.count}"
        minimum = f"architecture.minimum={args.clients * args.count}"
        tasks: dict[str, dict[str, Any]] = {
            "of its own": {"kind": "local", "words": [*NETWORK, channels, "architecture.envs=4"]},
            "of a server": {
                "kind": "remote", "words": [*NETWORK, channels, envs, minimum, "architecture.actors=1"],
                "clients": args.clients, "count": args.count,
            },
        }  # fmt: skip
        outcomes = compete({key: task | {"module": MODULE} for key, task in tasks.items()}, args.rounds)
        for key, outcome in outcomes.items():
            rows.append(outcome_row(args, f"inference/{name}", key, outcome, latency=_latency(outcome)))
        near_and_far.add_row(name, *(f"{1e3 * _latency(outcome):.2f}" for outcome in outcomes.values()))
    return finish(args, rows, shown, *([] if args.quick else [near_and_far]))


def _latency(outcome: Any) -> float:
    """Seconds, the median of the medians of its runs."""
    return median(run["latency"] for run in outcome.runs)


if __name__ == "__main__":
    main()
