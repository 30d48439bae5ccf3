"""Stability over settings (the paper's Fig. 4): V-trace with the 24 settings of its table 6, on CartPole.

The same settings on SEED, whose inference has the newest parameters at every step, and with inference near the
environment, where an actor takes parameters before an unroll (Sebulba, `architecture.refresh=unroll`). Sorted by their
final return, the curve that lies higher is the more stable.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Row, finish, notes, parse, parser, row, table
from boonta.experiments.files import read_json

SHAPE = {"agent.batch": 16, "agent.unroll": 32, "agent.value_cost": 0.5, "agent.anneal": "false"}
WHERE = {
    "SEED": ["--on", "seed", "--set", "architecture.envs=32"],
    "local inference": ["--on", "sebulba", "--set", "architecture.envs=32", "--set", "architecture.refresh=unroll"],
}


def settings(count: int) -> list[dict[str, float]]:
    """Draws from the ranges of table 6."""
    random = np.random.default_rng(6)
    log_uniform = lambda low, high: float(np.exp(random.uniform(np.log(low), np.log(high))))  # noqa: E731
    return [
        {
            "agent.discount": float(random.choice([0.99, 0.993, 0.997, 0.999])),
            "agent.entropy_cost": log_uniform(1e-5, 1e-3),
            "agent.learning_rate": log_uniform(1e-4, 1e-3),
            "agent.epsilon": float(random.choice([1e-1, 1e-3, 1e-5, 1e-7])),
            "agent.trace": float(random.choice([0.9, 0.95, 0.99, 1.0])),
        }
        for _ in range(count)
    ]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run what is not done yet; the rows it wrote."""
    options = parser("stability", __doc__ or "", rounds=1, module="seed")
    options.add_argument("--steps", type=int, help="of each run (default 300000)")
    options.add_argument("--runs", type=Path, default=Path("runs/stability"), help="where the run folders are")
    args = parse(options, argv)
    steps, count = args.steps or (4_000 if args.quick else 300_000), 1 if args.quick else 24
    returns: dict[str, list[float]] = {name: [] for name in WHERE}
    rows = []
    for i, chosen in enumerate(settings(count)):
        for name, where in WHERE.items():
            folder = args.runs / f"{name.replace(' ', '-')}-{i}"
            returns[name].append(_return(folder, [*where, "--steps", str(steps)], SHAPE | chosen))
            rows.append(row(args, f"{name}/{i}", name, [returns[name][-1]], "return", settings=chosen, steps=steps))
        notes.print(f"{i}: " + ", ".join(f"{name} {values[-1]:.0f}" for name, values in returns.items()))
    shown = table(
        f"V-trace on CartPole, {count} settings, {steps} steps", "", "mean return", "lowest quarter", "above 400"
    )
    for name, values in returns.items():
        low = float(np.mean(sorted(values)[: max(count // 4, 1)]))
        shown.add_row(name, f"{np.mean(values):.0f}", f"{low:.0f}", str(sum(value > 400 for value in values)))
    return finish(args, rows, shown)


def _return(folder: Path, words: list[str], chosen: dict[str, float]) -> float:
    """The final return of a run, which is made or gone on with where it is not done."""
    record = folder / "run.json"
    if not (record.is_file() and read_json(record)["status"] == "done"):
        assignments = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        new = ["vtrace", "gym:CartPole-v1", "--config", "none", *words, "--out", str(folder), *assignments]
        words = ["--resume", str(folder)] if record.is_file() else new
        made = subprocess.run(
            [sys.executable, "-P", "-m", "boonta", "train", *words, "--json"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return float(json.loads(made.stdout.splitlines()[-1])["eval_return_mean"])
    return float(read_json(record)["result"]["eval_return_mean"])


if __name__ == "__main__":
    main()
