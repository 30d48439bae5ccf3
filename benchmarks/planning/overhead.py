"""What the fleet costs on one machine: steps/s of the same agents on Sebulba, on Ray, and with members as threads."""

from collections.abc import Sequence
from typing import Any

from benchmarks.common import Row, compete, finish, notes, outcome_row, parse, parser, short, table

MUZERO = ["agent.body=mlp", "agent.simulations=16", "agent.history=0", "agent.n_step=1", "agent.batch=64"]
TASKS = {
    "V-trace on CartPole": (["vtrace", "gym:CartPole-v1", "agent.batch=16", "agent.unroll=20"], 128_000, 8),
    "MuZero on tic-tac-toe": (["muzero", "openspiel:tic_tac_toe", "agent.minimum=500", *MUZERO], 10_000, 32),
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    args = parse(parser("overhead", __doc__ or "", rounds=5, module="planning"), argv)
    rows: list[Row] = []
    result = table("A fleet of two training workers on one machine", "task", "who", "steps/s", "of Sebulba")
    for name, (words, steps, envs) in TASKS.items():
        notes.print(name)
        task: dict[str, Any] = {"module": "benchmarks.sebulba.contestants", "kind": "ours"}
        task["steps"] = 40 if args.quick else steps
        ours = ["architecture.training_workers=2", f"architecture.envs={envs}"]
        outcomes = compete(
            {
                "sebulba": task | {"on": "sebulba", "words": [*words, f"architecture.envs={2 * envs}"]},
                "fleet": task | {"on": "fleet", "words": [*words, *ours]},
                "fleet, threads": task | {"on": "fleet", "words": [*words, *ours, "architecture.crew=threads"]},
            },
            args.rounds,
        )
        for who, outcome in outcomes.items():
            share = outcome.rate / outcomes["sebulba"].rate
            rows.append(outcome_row(args, name, who, outcome, of_sebulba=share))
            result.add_row(name, who, short(outcome.rate), f"{share:.2f}")
    return finish(args, rows, result)


if __name__ == "__main__":
    main()
