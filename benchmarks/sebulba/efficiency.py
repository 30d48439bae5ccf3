"""What networks and batches do for data efficiency: V-trace on MinAtar's SpaceInvaders, served as host environments.

The paper's point is that a bigger network learns more from as many frames. Width and depth of the perceptron, and the
trajectories of the learner's batch, each change alone. A run folder that is done is only read again, and one that was
stopped goes on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import Row, finish, parse, parser, row, table
from benchmarks.learning import Task, train
from boonta.experiments.files import read_json
from boonta.experiments.metrics import read_metrics

RUN = (
    "vtrace gymnax:SpaceInvaders-MinAtar --on sebulba --config none --set agent.body=mlp --set agent.activation=relu "
    "--set architecture.envs=32"
)
POINTS = 40  # of a curve
CURVE = ("env_steps", "episode/count", "episode/return_mean")
USUAL = {"width": 128, "depth": 2, "batch": 32}
ASKED = {"width": [32, 128, 512], "depth": [1, 2, 4], "batch": [8, 32, 128]}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make the runs that are not done, and read them all; the rows it wrote."""
    options = parser("efficiency", __doc__ or "", rounds=3, module="sebulba")
    options.add_argument("--steps", type=int, help="environment steps of a run (default 500,000)")
    options.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders are (default runs)")
    args = parse(options, argv)
    steps = args.steps or (4_000 if args.quick else 500_000)
    asked = {"width": [8], "depth": [1]} if args.quick else ASKED
    rows = []
    shown = table("MinAtar SpaceInvaders, V-trace", "what", "return in training", "evaluation", "seconds of a run")
    for axis, values in asked.items():
        for value in values:
            found = _measure(args, axis, value, steps)
            rows.append(found)
            spread = f"{found['median']:.1f} ({found['min']:.1f} to {found['max']:.1f})"
            shown.add_row(found["cell"], f"{found['curve_mean'][-1]:.1f}", spread, f"{found['seconds']:.0f}")
    return finish(args, rows, shown)


def _measure(args: argparse.Namespace, axis: str, value: int, steps: int) -> Row:
    """The runs of one choice, over its seeds."""
    choice = USUAL | {axis: value}
    hidden = ",".join([str(choice["width"])] * choice["depth"])
    words = f"{RUN} --steps {steps} --set run.evaluate_every={steps}"
    words += f" --set agent.hidden={hidden} --set agent.batch={choice['batch']}"
    task = Task(words, None, args.rounds)
    folders = task.folders(args.runs, "efficiency-" + "-".join(f"{key}{choice[key]}" for key in USUAL))
    for seed, folder in enumerate(folders):
        train(task, seed, folder)
    records = [read_json(folder / "run.json") for folder in folders]
    results = [record["result"] for record in records]
    at = np.linspace(0, steps, POINTS + 1)[1:]
    curves = np.array([_curve(folder, at) for folder in folders])
    return row(
        args, f"{axis}/{value}", "ours", [result["eval_return_mean"] for result in results], "return",
        seconds=float(np.median([result["seconds"] for result in results])), run=f"boonta train {words}",
        at=at.tolist(), curve_mean=curves.mean(0).tolist(), curve_std=curves.std(0).tolist(),
        run_commits=sorted({record["commit"] for record in records}),
    )  # fmt: skip


def _curve(folder: Path, at: np.ndarray) -> np.ndarray:
    """The mean return of the episodes that training finished between one of these environment steps and the next."""
    told = [one for one in read_metrics(folder) if one.get("episode/count")]
    steps, counts, means = (np.array([one[key] for one in told]) for key in CURVE)
    where = np.minimum(np.searchsorted(at, steps), len(at) - 1)
    episodes = np.bincount(where, counts, len(at))
    with np.errstate(invalid="ignore"):
        curve = np.bincount(where, counts * means, len(at)) / episodes
    return np.interp(at, at[episodes > 0], curve[episodes > 0])


if __name__ == "__main__":
    main()
