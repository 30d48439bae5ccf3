"""Greedy returns after equal steps without a recipe: ours beside Stable-Baselines3, each with its own defaults.

Rows of other cells and of the other library are kept; `--only` and `--who` choose.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import ROOT, Row, finish, notes, parse, parser, row, table

LIMIT = 7200.0  # seconds that a run may take


class Cell(NamedTuple):
    """What is learned: steps of an environment, and greedy episodes afterwards."""

    agent: str
    env: str
    steps: int
    episodes: int = 100
    settings: tuple[tuple[str, Any], ...] = ()

    def name(self) -> str:
        """Such as ppo/CartPole-v1."""
        return f"{self.agent}/{self.env}"


CELLS = (
    Cell("ppo", "CartPole-v1", 300_000),
    Cell("ppo", "LunarLander-v3", 300_000),
    Cell("ppo", "FrozenLake-v1", 300_000, settings=(("is_slippery", False),)),
    Cell("ppo", "HalfCheetah-v5", 300_000, 20),
    Cell("dqn", "CartPole-v1", 100_000),
    Cell("dqn", "LunarLander-v3", 100_000),
    Cell("ddpg", "Pendulum-v1", 20_000),
    Cell("td3", "Pendulum-v1", 20_000),
    Cell("sac", "Pendulum-v1", 20_000),
    Cell("sac", "HalfCheetah-v5", 50_000, 20),
)


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("defaults", __doc__ or "", rounds=3, module="newcomer", script="returns")
    options.add_argument("--sb3", metavar="PYTHON", help="interpreter of an environment that has Stable-Baselines3")
    options.add_argument("--only", help="cells whose name has this in it")
    options.add_argument("--who", choices=("ours", "sb3"), help="one of the two")
    options.add_argument("--first", type=int, default=0, help="the first seed; there are --rounds of them")
    options.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parse(options, argv)
    if not args.sb3:
        notes.print("NOT ALL PEERS: --sb3 names an interpreter that has it")
    who = [name for name in ("ours", "sb3") if args.who in (None, name) and (name == "ours" or args.sb3)]
    rows, shown = [], table("Greedy return", "", "steps", *who)
    cells = [cell for cell in CELLS if args.only is None or args.only in cell.name()]
    seeds = range(args.first, args.first + args.rounds)
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {(c, w, s): pool.submit(_run, args, c, w, s) for c in cells for w in who for s in seeds}
        answers = {key: future.result() for key, future in futures.items()}
    for cell in cells:
        steps = _steps(args, cell)
        told = []
        for name in who:
            runs = [answers[cell, name, seed] for seed in seeds]
            means = [float(np.mean(run["returns"])) for run in runs]
            more = {"versions": runs[0]["versions"]} if "versions" in runs[0] else {}
            more |= {"steps": steps, "seeds": list(seeds)}  # no seconds: runs share the machine
            rows.append(row(args, f"{cell.name()}/{name}", name, means, "return", mean=float(np.mean(means)), **more))
            told.append(f"{np.mean(means):.1f} ± {np.std(means, ddof=1) if len(means) > 1 else 0.0:.1f}")
        shown.add_row(cell.name(), f"{steps:,}", *told)
    return finish(args, rows, shown, some=True)


def _steps(args: argparse.Namespace, cell: Cell) -> int:
    return 2000 if args.quick else cell.steps


def _run(args: argparse.Namespace, cell: Cell, who: str, seed: int) -> dict[str, Any]:
    """One run: the returns of its greedy episodes, and its seconds."""
    steps, episodes = _steps(args, cell), 2 if args.quick else cell.episodes
    if who == "sb3":
        task = {"agent": cell.agent, "env": cell.env, "settings": dict(cell.settings), "steps": steps}
        words = [args.sb3, "-m", "benchmarks.newcomer.sb3", json.dumps(task | {"seed": seed, "episodes": episodes})]
        answer = _last(words, os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
        told = answer
    else:
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-P", "-m", "boonta", "train", cell.agent, f"gym:{cell.env}", "--config", "none"]
            words += ["--steps", str(steps), "--seed", str(seed), "--out", str(Path(folder) / "run"), "--json"]
            sets = [f"run.eval_episodes={episodes}", f"run.evaluate_every={steps}"]
            sets += [f"env.{key}={json.dumps(value)}" for key, value in cell.settings]
            for text in sets:
                words += ["--set", text]
            answer = _last(words, dict(os.environ))
            told = {"returns": [answer["eval_return_mean"]], "seconds": answer["seconds"]}
    notes.print(f"{cell.name()}, {who}, seed {seed}: {np.mean(told['returns']):.1f} in {told['seconds']:.0f} s")
    return told


def _last(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:4])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
