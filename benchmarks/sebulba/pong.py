"""Pong with V-trace and the Nature CNN beside Sample Factory, and beside what the parts do alone.

The parts are the environments with random actions, acting and learning, each with the machine to itself. On a CPU they
share its cores, so 1 / (1 / environments + 1 / acting + 1 / learning) is the most that a whole run could do; with
devices of their own it is the slowest of them.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, machine, notes, outcome_row, parse, parser, short, table

MODULE = "benchmarks.sebulba.contestants"
WORDS = ["vtrace", "ale:Pong", "agent.batch=16", "agent.unroll=20", "architecture.envs=16"]  # the rest is the recipe's
# The fastest of those tried on two cores: workers 1 and 2, environments 4 to 16, batches 256 to 1024, splits 1 and 2.
SAMPLE_FACTORY = [
    "--with_vtrace=True", "--recurrence=32", "--rollout=32", "--num_epochs=1", "--num_batches_per_epoch=1",
    "--batch_size=512", "--async_rl=True", "--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=2",
    "--normalize_input=False", "--normalize_returns=False", "--save_every_sec=100000",
]  # fmt: skip
PARTS = ("environments", "acting", "learning")


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("pong", __doc__ or "", rounds=5, module="sebulba")
    options.add_argument("--sample-factory", metavar="PYTHON", help="interpreter of an environment that has it")
    args = parse(options, argv)
    base = {"module": MODULE, "words": WORDS}
    tasks: dict[str, dict[str, Any]] = {
        "ours": base | {"kind": "ours", "iterations": 2 if args.quick else 60},
        **{part: base | {"kind": part} for part in PARTS},
    }
    pythons = {}
    if args.sample_factory:
        steps = 4_000 if args.quick else 40_000
        tasks["sample_factory"] = {
            "module": MODULE, "kind": "sample_factory", "options": SAMPLE_FACTORY, "steps": steps,
        }  # fmt: skip
        pythons["sample_factory"] = args.sample_factory
    else:
        notes.print("NO PEER: --sample-factory names an interpreter that has it")
    outcomes = compete(tasks, args.rounds, pythons)
    rates = {name: outcome.rate for name, outcome in outcomes.items()}
    shared = machine()["backend"] == "cpu"
    limit = 1 / sum(1 / rates[part] for part in PARTS) if shared else min(rates[part] for part in PARTS)
    peer = rates.get("sample_factory")
    rows = []
    result = table("Pong, V-trace, Nature CNN", "contestant", "steps/s", "of the limit", "of Sample Factory")
    for name, outcome in outcomes.items():
        more = {"limit": limit, "of_limit": rates[name] / limit, "of_peer": rates[name] / peer if peer else None}
        rows.append(outcome_row(args, "pong", name, outcome, words=WORDS, options=SAMPLE_FACTORY, **more))
        of_peer = f"{more['of_peer']:.2f}" if peer else "-"
        result.add_row(name, short(rates[name]), f"{more['of_limit']:.2f}", of_peer)
    return finish(args, rows, result, remarks=[f"the limit: {limit:.0f} steps/s"])


if __name__ == "__main__":
    main()
