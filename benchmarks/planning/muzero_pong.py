"""MuZero on Pong, on Sebulba: steps/s by learner devices, and by the updates that one acting batch is split into.

The paper's Fig. 4c has more cores; devices are virtual on a CPU and share its cores, so the table shows what dividing
the work costs, not what it brings.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, numbers, outcome_row, parse, parser, short, table

MODULE = "benchmarks.sebulba.contestants"
ENVS, UNROLL = 16, 8
NETWORK = ["agent.body=resnet", "agent.channels=16", "agent.blocks=[1,1,0]", "agent.history=0", "agent.simulations=8"]
PLAIN = ["agent.capacity=0", "agent.unroll_steps=2", "agent.n_step=2", f"agent.roots={UNROLL - 4}"]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("muzero_pong", __doc__ or "", rounds=3, module="planning")
    options.add_argument("--learners", type=numbers, default=[1, 2, 4], help="learner devices")
    options.add_argument("--splits", type=numbers, default=[1, 2, 4], help="updates made of one acting batch")
    args = parse(options, argv)
    iterations = 1 if args.quick else 8

    def ours(devices: int, splits: int) -> dict[str, Any]:
        shape = [f"architecture.envs={ENVS}", f"agent.batch={ENVS // splits}", f"architecture.learners={devices}"]
        words = ["muzero", "ale:Pong", *NETWORK, *PLAIN, *shape]
        return {"module": MODULE, "kind": "ours", "words": words, "iterations": iterations, "devices": devices}

    groups = {
        "learner devices": {str(n): ours(n, 1) for n in args.learners},
        "updates of a batch": {str(n): ours(1, n) for n in args.splits},
    }
    rows, tables = [], []
    for group, tasks in groups.items():
        outcomes = compete(tasks, args.rounds)
        first = next(iter(outcomes.values())).rate
        shown = table(f"MuZero on Pong, {ENVS} environments, by {group}", group, "steps/s", "of the first")
        for name, outcome in outcomes.items():
            rows.append(outcome_row(args, f"{group}/{name}", "ours", outcome, of_first=outcome.rate / first))
            shown.add_row(name, short(outcome.rate), f"{outcome.rate / first:.2f}")
        tables.append(shown)
    return finish(args, rows, *tables)


if __name__ == "__main__":
    main()
