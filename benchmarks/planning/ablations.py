"""What parts of MuZero are for: each switched, three seeds, equal steps, on Catch and CartPole."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Row, finish, notes, parse, parser, row, table

TASKS = {"boonta:catch": 60_000, "gymnax:CartPole-v1": 40_000}
PLAIN = ["agent.reanalyse=0.0"]  # of all of them, but for what a variant switches
VARIANTS: dict[str, list[str]] = {
    "plain": [],
    "reanalysed, half of all searches": ["agent.reanalyse=0.5"],
    "dummy action past the end": ["agent.beyond=dummy"],
    "self-consistency": ["agent.consistency_coefficient=2.0"],
    "batch normalisation": ["agent.norm=batch"],
    "PUCT": ["agent.search=puct"],
}
QUICK = ["agent.width=8", "agent.simulations=2", "agent.batch=8", "agent.minimum=16", "run.eval_episodes=2"]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("ablations", __doc__ or "", rounds=3, module="planning")
    args = parse(options, argv)
    rows: list[Row] = []
    result = table(f"Greedy return after training, {args.rounds} seeds", "task", "variant", "mean", "spread", "seconds")
    for task, steps in TASKS.items():
        for variant, settings in VARIANTS.items():
            notes.print(f"{task}: {variant}")
            settings = PLAIN + settings
            steps = 400 if args.quick else steps
            summary = _trained(task, steps, args.rounds, settings + (QUICK if args.quick else []))
            members = summary.get("members", [summary])
            values = [member["eval_return_mean"] for member in members]
            more = {"env_steps": steps, "seconds": summary["seconds"], "settings": settings}
            rows.append(row(args, task, variant, values, "return", **more))
            spread = summary.get("eval_return_std_over_members", 0.0)
            result.add_row(
                task, variant, f"{sum(values) / len(values):.3g}", f"{spread:.2g}", f"{summary['seconds']:.0f}"
            )
    return finish(args, rows, result)


def _trained(task: str, steps: int, seeds: int, settings: list[str]) -> dict:
    words = [
        sys.executable,
        "-P",
        "-m",
        "boonta",
        "train",
        "muzero",
        task,
        "--steps",
        str(steps),
        "--seeds",
        str(seeds),
    ]
    words += [word for text in settings for word in ("--set", text)]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        done = subprocess.run([*words, "--json", "--out", out], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
