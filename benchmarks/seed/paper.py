"""R2D2 on Pong with the paper's settings (tables 8 and 9): updates/s, and the hours that the paper's run would take.

Everything is as in the tables but the capacity of the replay, which goes by the memory there is: 610 environments, the
network and optimiser, sequences of 120 steps with a burn-in of 40, batches of 64, a replay ratio of 0.75, all 18
actions. Learning starts at 5000 sequences. The paper's run: 40 billion frames, 43 hours on eight TPU v3 cores.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import Row, finish, parse, parser, row, short, table
from boonta.experiments.metrics import read_metrics

FRAMES, HOURS = 40e9, 43.0  # of the paper's run
REPEAT = 4  # frames of a step
TABLES = {
    "architecture.envs": 610, "architecture.actors": 10, "architecture.maximum": 64, "architecture.worker_count": 1,
    "env.full_actions": "true", "architecture.silence": 600, "architecture.timeout": 600,
}  # fmt: skip
TRAINED, RATIO, MINIMUM = 64 * 80, 0.75, 5000 * 40  # steps of an update; for each step; steps before the first
QUICK = {
    "architecture.envs": 4, "architecture.actors": 1, "agent.length": 8, "agent.burn_in": 4, "agent.period": 4,
    "agent.batch": 2, "agent.minimum": 8, "agent.hidden": "[8]", "agent.core_size": 8, "agent.head": 8,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Make the run; the rows it wrote."""
    options = parser("paper", __doc__ or "", rounds=1, module="seed")
    options.add_argument("--updates", type=int, default=25, help="updates to make (default 25)")
    options.add_argument("--capacity", type=int, default=20_000, help="sequences (default 20000; paper 100000)")
    args = parse(options, argv)
    settings = {"agent.capacity": args.capacity} | TABLES
    steps, every = MINIMUM + int(args.updates * TRAINED / RATIO), 6_100
    if args.quick:
        settings, steps, every = {"agent.capacity": 64} | TABLES | QUICK, 400, 16
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["r2d2", "ale:Pong", "--on", "seed", "--config", "none", "--steps", str(steps), "--out", str(run)]
        more = settings | {"run.log_every": every, "run.eval_episodes": 1, "run.save_replay": "false"}
        assignments = [word for key, value in more.items() for word in ("--set", f"{key}={value}")]
        subprocess.run(
            [sys.executable, "-P", "-m", "boonta", "train", *words, *assignments], check=True, stdout=sys.stderr
        )
        seen = [(one["updates"], one["env_steps"], one["seconds"]) for one in _learning(run)]
    (updates, taken, seconds) = (last - first for first, last in zip(seen[0], seen[-1], strict=True))
    pace = {"updates": seen[-1][0], "updates_per_second": updates / seconds, "steps_per_second": taken / seconds}
    pace["projected_hours"] = FRAMES / REPEAT / pace["steps_per_second"] / 3600
    shown = table("R2D2 on Pong as in the paper", "updates", "updates/s", "frames/s", "hours for 40 billion frames")
    shown.add_row(
        str(seen[-1][0]), f"{pace['updates_per_second']:.3f}", short(REPEAT * pace["steps_per_second"]),
        f"{pace['projected_hours']:.0f} (paper: {HOURS:.0f})",
    )  # fmt: skip
    made = row(args, "ale:Pong", "ours", [pace["updates_per_second"]], "updates/s", settings=settings, **pace)
    return finish(args, [made], shown)


def _learning(run: Path) -> list[Row]:
    """The rows of its log from the first update on."""
    return [one for one in read_metrics(run) if one.get("updates", 0) >= 1 and "loss/td" in one]


if __name__ == "__main__":
    main()
