"""The paper's experiment: how large should the value's batch be, and what may be scaled beside it? DDPG on Pendulum.

Each axis changes alone: the value's batch, the policy's, value updates for each policy update, and processes of
environments, all at equal environment steps; the value's batch at equal wall-clock as well, where nobody waits for
anybody; and the same run in one process, synchronous or not (Sebulba), in processes of one machine, and over Redis. A
run folder that is done is only read again, and one that was stopped goes on.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, finish, notes, parse, parser, row, table
from boonta.experiments.files import read_json
from boonta.experiments.metrics import read_metrics
from boonta.testing.redis_servers import serving

RUN = "ddpg gym:Pendulum-v1 --config none --set agent.hidden=64,64 --set agent.minimum=500"
USUAL = {
    "agent.value_batch": 256, "agent.policy_batch": 256, "agent.value_updates": 1.0, "architecture.environments": 1,
}  # fmt: skip
BATCHES = [64, 256, 1024, 4096, 8192]
ASKED: dict[str, tuple[str, list[Any]]] = {
    "value-batch": ("agent.value_batch", BATCHES),
    "equal-time": ("agent.value_batch", BATCHES),
    "policy-batch": ("agent.policy_batch", [64, 512, 4096]),
    "value-updates": ("agent.value_updates", [1.0, 2.0, 4.0, 8.0]),
    "environments": ("architecture.environments", [1, 2, 4]),
    "carrier": ("--on", ["synchronous", "sebulba", "shm", "redis"]),
}
DIVERGED = -1000.0  # the return of a policy that has not learned, or no longer knows
POINTS = 25  # of a curve
BAND = 16  # updates that learners may be behind where counts are held to ratios
TIMED = 2_000  # steps between lines of a run without end: at each of them all wait for one another
NUMBERS = ("value_loss", "value_loss_variance", "policy_loss", "updates_per_second")
SHOWN = {"return": "episode/return_mean", "value loss": "loss/value", "policy loss": "loss/policy"}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make the runs that are not done, and read them all; the rows it wrote."""
    options = parser("value_batch", __doc__ or "", rounds=5, module="split")
    options.add_argument("--steps", type=int, help="environment steps of a run (default 10,000)")
    options.add_argument("--seconds", type=float, help="wall-clock of a run where that is equal (default 40)")
    options.add_argument("--runs", type=Path, default=Path("runs/value-batch"), help="where the run folders are")
    options.add_argument("--only", help=f"some of: {', '.join(ASKED)}")
    args = parse(options, argv)
    args.steps, args.seconds = args.steps or (2_000 if args.quick else 10_000), args.seconds or 40.0
    asked = args.only.split(",") if args.only else list(ASKED)
    if unknown := set(asked) - set(ASKED):
        options.error(f"--only: unknown {', '.join(unknown)}; allowed: {', '.join(ASKED)}")
    rows = []
    columns = ("return", "diverged", "value loss", "its variance", "policy loss", "value updates/s", "seconds")
    shown = table("DDPG on Pendulum", "what", *columns)
    for axis in asked:
        key, values = ASKED[axis]
        for value in values[:2] if args.quick else values:
            found = _measure(args, axis, key, value)
            rows.append(found)
            numbers = [found[name] for name in NUMBERS]
            shown.add_row(
                found["cell"], f"{found['median']:.0f}", f"{found['diverged']:.0%}",
                *(f"{number:.3g}" for number in numbers), f"{found['seconds']:.0f}",
            )  # fmt: skip
            notes.print(f"{found['cell']}: {found['median']:.0f}")
    return finish(args, rows, shown)


def _measure(args: argparse.Namespace, axis: str, key: str, value: Any) -> Row:
    """The runs of one choice, over its seeds."""
    choice = USUAL | ({key: value} if key in USUAL else {})
    timed = axis == "equal-time"
    results, told, folders = [], [], []
    for seed in range(args.rounds):
        name = "-".join(str(x) for x in choice.values()) + (f"-{value}" if key == "--on" else "-shm")
        folder = args.runs / f"{'timed' if timed else args.steps}-{name}-{seed}"
        folders.append(folder)
        results.append(_run(args, folder, choice, value if key == "--on" else "shm", seed, timed))
        told.append([one for one in read_metrics(folder) if one.get("loss/value") is not None])
    half = [one for rows in told for one in rows[len(rows) // 2 :]]
    mean = lambda name: float(np.mean([one[name] for one in half]))  # noqa: E731
    at, axis_key = np.linspace(0, 1, POINTS + 1)[1:], "seconds" if timed else "env_steps"
    ends = [rows[-1][axis_key] for rows in told]
    end = float(np.median(ends))
    drawn = lambda metric: np.array([_curve(folder, axis_key, end * at, metric) for folder in folders])  # noqa: E731
    curves = {name: drawn(metric) for name, metric in SHOWN.items()}
    return row(
        args, f"{axis}/{value}", "ours", [result["eval_return_mean"] for result in results], "return",
        diverged=float(np.mean([not result["eval_return_mean"] > DIVERGED for result in results])),
        value_loss=mean("loss/value"), value_loss_variance=mean("loss/value_variance"), policy_loss=mean("loss/policy"),
        updates_per_second=float(np.median([_speed(rows) for rows in told])),
        seconds=float(np.median([rows[-1]["seconds"] for rows in told])),
        env_steps=float(np.median([rows[-1]["env_steps"] for rows in told])), settings=choice,
        axis=axis_key, at=(end * at).tolist(),
        curves={name: [curve.mean(0).tolist(), curve.std(0).tolist()] for name, curve in curves.items()},
        run_commits=sorted({read_json(folder / "run.json")["commit"] for folder in folders}),
    )  # fmt: skip


def _run(args: argparse.Namespace, folder: Path, choice: dict[str, Any], carrier: str, seed: int, timed: bool) -> Row:
    """What a run came to, which is made or gone on with where it is not done."""
    record, score = folder / "run.json", folder / "score"
    done = record.is_file() and read_json(record)["status"] == "done"
    if not (_trained(folder) >= args.seconds if timed else done):
        sebulba = carrier in ("synchronous", "sebulba")
        steps = 1_000_000_000 if timed else args.steps
        words = [*RUN.split(), "--on", "sebulba" if sebulba else "split", "--seed", str(seed), "--steps", str(steps)]
        words += ["--synchronous"] if carrier == "synchronous" else []
        words += ["--set", f"run.log_every={TIMED if timed else max(args.steps // POINTS, 1)}"]
        words += ["--set", "run.eval_episodes=20", "--set", f"run.evaluate_every={steps}", "--out", str(folder)]
        words += [word for key, x in choice.items() if not sebulba or "agent" in key
                  for word in ("--set", f"{key}={x}")]  # fmt: skip
        words += ["--set", "architecture.envs=1"]
        words += ["--set", "architecture.free_running=true"] if timed else []
        words += [] if sebulba or timed else ["--set", f"architecture.band={BAND}"]
        words = ["--resume", str(folder)] if record.is_file() else words
        with ExitStack() as stack:
            if carrier == "redis":
                place = stack.enter_context(tempfile.TemporaryDirectory())
                words += ["--transport", stack.enter_context(serving(Path(place))).address]
            _train(words, args.seconds if timed else None, folder)
    if not timed:
        return read_json(record)["result"]
    if not score.is_file():
        words = ["eval", str(folder), "--episodes", "20", "--checkpoint", "latest", "--json"]
        score.write_text(_boonta(words).stdout.splitlines()[-1], "utf-8")
    return read_json(score)


def _train(words: list[str], seconds: float | None, folder: Path) -> None:
    """Train to the end, or until it has done so for so many seconds."""
    if seconds is None:
        _boonta(["train", *words, "--json"])
        return
    with subprocess.Popen([sys.executable, "-m", "boonta", "train", *words], stderr=subprocess.PIPE, text=True) as one:
        while _trained(folder) < seconds:
            if one.poll() is not None:
                raise RuntimeError(one.stderr.read() if one.stderr else "it ended")
            time.sleep(0.1)
        one.send_signal(signal.SIGTERM)
        one.communicate(timeout=300)


def _trained(folder: Path) -> float:
    """For how many seconds a run has been trained."""
    told = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    return told[-1]["seconds"] if told else 0.0


def _boonta(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "boonta", *words], check=True, stdout=subprocess.PIPE, text=True)


def _speed(told: list[Row]) -> float:
    """Value updates/s from the first line to the last."""
    first, last, name = told[0], told[-1], "updates/value" if "updates/value" in told[-1] else "updates"
    return (last[name] - first[name]) / max(last["seconds"] - first["seconds"], 1e-9)


def _curve(folder: Path, key: str, at: np.ndarray, metric: str) -> np.ndarray:
    """A metric at these places."""
    told = [one for one in read_metrics(folder) if one.get(metric) is not None]
    return np.interp(at, [one[key] for one in told], [one[metric] for one in told])


if __name__ == "__main__":
    main()
