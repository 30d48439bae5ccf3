"""Pong with V-trace and the Nature CNN beside Sample Factory, and beside what the parts do alone.

The parts are the environments with random actions, acting and learning, each with the machine to itself. On a CPU they
share its cores: one after the other they would make 1 / (1 / environments + 1 / acting + 1 / learning), which a whole
run can beat only as far as a part alone leaves a core idle; with devices of their own it is the slowest of them.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, machine, notes, outcome_row, parse, parser, short, table

MODULE = "benchmarks.sebulba.contestants"
WORDS = ["vtrace", "ale:Pong", "agent.batch=16", "agent.unroll=20", "architecture.envs=16"]  # the rest is the recipe's
# The fastest that were found on two cores, of 1 to 3 workers, 4 to 16 environments, batches of 256 to 1024, 1 or 2
# splits, asynchronous or not. Its V-trace fails in the version that was tried (2.1.1), so it learns by its own PPO
# loss: the same passes through the same network.
SAMPLE_FACTORY = [
    "--with_vtrace=False", "--recurrence=1", "--rollout=32", "--num_epochs=1", "--num_batches_per_epoch=1",
    "--batch_size=512", "--async_rl=True", "--num_workers=2", "--num_envs_per_worker=8", "--worker_num_splits=1",
    "--normalize_returns=False", "--save_every_sec=100000",
]  # fmt: skip
CELLS = {"pixels as they are": False, "normalised pixels": True}
PARTS = ("environments", "acting", "learning")


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    known = parser("pong", __doc__ or "", rounds=5, module="sebulba")
    known.add_argument("--sample-factory", metavar="PYTHON", help="interpreter of an environment that has it")
    args = parse(known, argv)
    if not args.sample_factory:
        notes.print("NO PEER: --sample-factory names an interpreter that has it")
    rows, tables, remarks = [], [], []
    for cell, normalized in CELLS.items():
        words = [*WORDS, f"agent.normalize_observations={str(normalized).lower()}"]
        base = {"module": MODULE, "words": words}
        tasks: dict[str, dict[str, Any]] = {
            "ours": base | {"kind": "ours", "iterations": 2 if args.quick else 60},
            **{part: base | {"kind": part} for part in PARTS},
        }
        options = [*SAMPLE_FACTORY, f"--normalize_input={normalized}"]
        if args.sample_factory:
            steps = 20_000 if args.quick else 40_000
            tasks["sample_factory"] = {"module": MODULE, "kind": "sample_factory", "options": options, "steps": steps}
        outcomes = compete(tasks, args.rounds, {"sample_factory": args.sample_factory})
        rates = {name: outcome.rate for name, outcome in outcomes.items()}
        shared = machine()["backend"] == "cpu"
        limit = 1 / sum(1 / rates[part] for part in PARTS) if shared else min(rates[part] for part in PARTS)
        peer = rates.get("sample_factory")
        shown = table(
            f"Pong, Nature CNN, {cell}", "contestant", "steps/s", "of our parts in a row", "of Sample Factory"
        )
        for name, outcome in outcomes.items():
            more = {"limit": limit, "of_limit": rates[name] / limit, "of_peer": rates[name] / peer if peer else None}
            told = {"options": options} if name == "sample_factory" else {"words": words}
            rows.append(outcome_row(args, cell, name, outcome, **told, **more))
            of_peer = f"{more['of_peer']:.2f}" if peer else "-"
            shown.add_row(name, short(rates[name]), f"{more['of_limit']:.2f}", of_peer)
        tables.append(shown)
        remarks.append(f"{cell}: the limit is {limit:.0f} steps/s")
    return finish(args, rows, *tables, remarks=remarks)


if __name__ == "__main__":
    main()
