"""Pong with V-trace and the Nature CNN in other shapes: the actors' batch, learner devices, replicas.

The paper's Fig. 4b asks what a larger actor batch brings on a TPU core, at unrolls of 60. Learner devices and replicas
are virtual on a CPU: they share its cores, so the tables show what dividing the work costs there, not what it brings.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, numbers, outcome_row, parse, parser, short, table

MODULE = "benchmarks.sebulba.contestants"


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("shapes", __doc__ or "", rounds=3, module="sebulba")
    options.add_argument("--batches", type=numbers, default=[32, 64, 96, 128], help="actor batches")
    options.add_argument("--learners", type=numbers, default=[1, 2, 4], help="learner devices")
    options.add_argument("--replicas", type=numbers, default=[1, 2], help="processes")
    options.add_argument("--unroll", type=int, default=60, help="steps of a trajectory")
    args = parse(options, argv)
    unroll = 4 if args.quick else args.unroll
    steps = 2_000 if args.quick else 20_000  # of a measured run, at least

    def words(batch: int, *more: str) -> list[str]:
        shape = [f"agent.batch={batch}", f"agent.unroll={unroll}", f"architecture.envs={batch}"]
        return ["vtrace", "ale:Pong", *shape, *more]

    def ours(batch: int, *more: str, devices: int = 1) -> dict[str, Any]:
        iterations = max(2, steps // (batch * unroll))
        task = {"module": MODULE, "kind": "ours", "words": words(batch, *more), "iterations": iterations}
        return task | {"devices": devices}

    groups: dict[str, dict[str, dict[str, Any]]] = {
        "actor batch": {str(n): ours(n) for n in args.batches},
        "learner devices": {str(n): ours(64, f"architecture.learners={n}", devices=n) for n in args.learners},
        "replicas": {
            str(n): {
                "module": MODULE, "kind": "replicas", "processes": n, "steps": 3 * steps,
                "words": [*words(32 * n)[:-1], "architecture.envs=32"],
            }
            for n in args.replicas
        },
    }  # fmt: skip
    rows, tables = [], []
    for group, tasks in groups.items():
        outcomes = compete(tasks, args.rounds, hurry=group == "replicas")
        first = next(iter(outcomes.values())).rate
        shown = table(f"Pong, unrolls of {unroll}, by {group}", group, "steps/s", "of the first", "actors idle", "lag")
        for name, outcome in outcomes.items():
            run = outcome.runs[-1]
            facts = {
                key: run[key] for key in ("idle/actor_devices", "idle/learner_devices", "policy_lag_mean") if key in run
            }
            rows.append(outcome_row(args, f"{group}/{name}", "ours", outcome, of_first=outcome.rate / first, **facts))
            idle, lag = (
                f"{facts[key]:.2f}" if key in facts else "-" for key in ("idle/actor_devices", "policy_lag_mean")
            )
            shown.add_row(name, short(outcome.rate), f"{outcome.rate / first:.2f}", idle, lag)
        tables.append(shown)
    return finish(args, rows, *tables)


if __name__ == "__main__":
    main()
