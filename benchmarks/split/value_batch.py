"""The paper's experiment: how large should the value's batch be, and what may be scaled beside it? DDPG on Pendulum.

Each axis changes alone: the value's batch, the policy's, value updates for each policy update, and processes of
environments, all at equal environment steps; the value's batch at equal wall-clock as well, where nobody waits for
anybody; and the same run in one process, synchronous or not (Sebulba), in processes of one machine, and over Redis. The
value's batch is changed on HalfCheetah too, in one process, for what carries it does not matter at equal steps. A run
folder that is done is only read again, and one that was stopped goes on.
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
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Row, finish, notes, parse, parser, row, table
from boonta.experiments.files import read_json
from boonta.experiments.metrics import read_metrics
from boonta.testing.redis_servers import serving

RUN = "--config none --set agent.hidden=64,64 --set agent.minimum=500"
USUAL = {
    "agent.value_batch": 256, "agent.policy_batch": 256, "agent.value_updates": 1.0, "architecture.environments": 1,
}  # fmt: skip
BATCHES = [64, 256, 1024, 4096, 8192]


class Axis(NamedTuple):
    """What is changed, and in which runs.

    Attributes:
        key: the setting, or --on.
        values: of it.
        env: the task.
        steps: of each run.
        carrier: of runs whose carrier is not what is changed.
        diverged: the return below which a policy has not learned, or no longer knows.
    """

    key: str
    values: list[Any]
    env: str = "gym:Pendulum-v1"
    steps: int = 10_000
    carrier: str = "shm"
    diverged: float = -1000.0


ASKED = {
    "value-batch": Axis("agent.value_batch", BATCHES),
    "equal-time": Axis("agent.value_batch", BATCHES),
    "halfcheetah": Axis("agent.value_batch", BATCHES[:4], "gym:HalfCheetah-v5", 40_000, "synchronous", 0.0),
    "policy-batch": Axis("agent.policy_batch", [64, 512, 4096]),
    "value-updates": Axis("agent.value_updates", [1.0, 2.0, 4.0, 8.0]),
    "environments": Axis("architecture.environments", [1, 2, 4]),
    "carrier": Axis("--on", ["synchronous", "sebulba", "shm", "redis"]),
}
POINTS = 25  # of a curve
BAND = 16  # updates that learners may be behind where counts are held to ratios
TIMED = 2_000  # steps between lines of a run without end: at each of them all wait for one another
NUMBERS = ("value_loss", "value_loss_variance", "policy_loss", "updates_per_second")
SHOWN = {"return": "episode/return_mean", "value loss": "loss/value", "policy loss": "loss/policy"}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make the runs that are not done, and read them all; the rows it wrote."""
    options = parser("value_batch", __doc__ or "", rounds=5, module="split")
    options.add_argument("--steps", type=int, help="environment steps of a run (default: the axis' own)")
    options.add_argument("--seconds", type=float, help="wall-clock of a run where that is equal (default 40)")
    options.add_argument("--runs", type=Path, default=Path("runs/value-batch"), help="where the run folders are")
    options.add_argument("--only", help=f"some of: {', '.join(ASKED)}")
    args = parse(options, argv)
    args.seconds = args.seconds or 40.0
    asked = args.only.split(",") if args.only else list(ASKED)
    if unknown := set(asked) - set(ASKED):
        options.error(f"--only: unknown {', '.join(unknown)}; allowed: {', '.join(ASKED)}")
    rows = []
    columns = ("return", "diverged", "value loss", "its variance", "policy loss", "value updates/s", "seconds")
    shown = table("DDPG", "what", *columns)
    for axis in asked:
        for value in ASKED[axis].values[: 2 if args.quick else None]:
            found = _measure(args, axis, value)
            rows.append(found)
            numbers = [found[name] for name in NUMBERS]
            shown.add_row(
                found["cell"], f"{found['median']:.0f}", f"{found['diverged']:.0%}",
                *(f"{number:.3g}" for number in numbers), f"{found['seconds']:.0f}",
            )  # fmt: skip
            notes.print(f"{found['cell']}: {found['median']:.0f}")
    return finish(args, rows, shown)


def _measure(args: argparse.Namespace, name: str, value: Any) -> Row:
    """The runs of one choice, over its seeds."""
    axis, timed = ASKED[name], name == "equal-time"
    choice = USUAL | ({axis.key: value} if axis.key in USUAL else {})
    carrier = value if axis.key == "--on" else axis.carrier
    steps = args.steps or (2_000 if args.quick else axis.steps)
    about = "-".join(map(str, [axis.env.partition(":")[2], "timed" if timed else steps, *choice.values(), carrier]))
    results, told, folders = [], [], []
    for seed in range(args.rounds):
        folder = args.runs / f"{about}-{seed}"
        folders.append(folder)
        results.append(_run(folder, axis.env, choice, carrier, seed, steps, args.seconds if timed else None))
        told.append([one for one in read_metrics(folder) if one.get("loss/value") is not None])
    half = [one for rows in told for one in rows[len(rows) // 2 :]]
    mean = lambda name: float(np.mean([one[name] for one in half]))  # noqa: E731
    at, axis_key = np.linspace(0, 1, POINTS + 1)[1:], "seconds" if timed else "env_steps"
    ends = [rows[-1][axis_key] for rows in told]
    end = float(np.median(ends))
    drawn = lambda metric: np.array([_curve(folder, axis_key, end * at, metric) for folder in folders])  # noqa: E731
    curves = {name: drawn(metric) for name, metric in SHOWN.items()}
    return row(
        args, f"{name}/{value}", "ours", [result["eval_return_mean"] for result in results], "return",
        diverged=float(np.mean([not result["eval_return_mean"] > axis.diverged for result in results])),
        value_loss=mean("loss/value"), value_loss_variance=mean("loss/value_variance"), policy_loss=mean("loss/policy"),
        updates_per_second=float(np.median([_speed(rows) for rows in told])),
        seconds=float(np.median([rows[-1]["seconds"] for rows in told])),
        env_steps=float(np.median([rows[-1]["env_steps"] for rows in told])), settings=choice,
        axis=axis_key, at=(end * at).tolist(),
        curves={name: [curve.mean(0).tolist(), curve.std(0).tolist()] for name, curve in curves.items()},
        run_commits=sorted({read_json(folder / "run.json")["commit"] for folder in folders}),
    )  # fmt: skip


def _run(
    folder: Path, env: str, choice: dict[str, Any], carrier: str, seed: int, steps: int, seconds: float | None
) -> Row:
    """What a run came to, which is made or gone on with where it is not done; of so many seconds, or of `steps`."""
    record, score, timed = folder / "run.json", folder / "score", seconds is not None
    done = record.is_file() and read_json(record)["status"] == "done"
    if not (_trained(folder) >= seconds if seconds is not None else done):
        sebulba = carrier in ("synchronous", "sebulba")
        log_every, steps = (TIMED, 1_000_000_000) if timed else (max(steps // POINTS, 1), steps)
        words = ["ddpg", env, *RUN.split(), "--on", "sebulba" if sebulba else "split"]
        words += ["--seed", str(seed), "--steps", str(steps), "--set", f"run.log_every={log_every}"]
        words += ["--synchronous"] if carrier == "synchronous" else []
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
            _train(words, seconds, folder)
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
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "boonta", "train", *words], stderr=subprocess.PIPE, text=True
    ) as one:
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
    return subprocess.run([sys.executable, "-P", "-m", "boonta", *words], check=True, stdout=subprocess.PIPE, text=True)


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
