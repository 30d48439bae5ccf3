"""`kill -9` at random moments of a run on each architecture: what is lost, and whether the run goes on."""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import Row, finish, notes, parse, parser, row, table
from benchmarks.drilled import Stage

EVERY = 1.0  # seconds, after which a checkpoint is due
RUNS = {
    "anakin": ["ppo", "gymnax:CartPole-v1"],
    "sebulba": ["ppo", "gym:CartPole-v1"],
    "seed": ["vtrace", "gym:CartPole-v1"],
    "fleet": ["dqn", "gym:CartPole-v1"],
    "split": ["ddpg", "gym:Pendulum-v1"],
}


class Saved(NamedTuple):
    """A whole checkpoint: its step, when it was whole, and the seconds that writing it and its replay took."""

    step: int
    at: float
    took: float


class Killed(NamedTuple):
    """Seconds from the last whole checkpoint to the kill, the slowest save so far, and its step if there was one."""

    seconds: float
    save: float
    step: int | None


def saved(run: Path) -> list[Saved]:
    """The checkpoints of a run, the latest last."""
    found = []
    for whole in run.glob("checkpoints/[0-9]*/checksums.json"):
        with suppress(FileNotFoundError):  # a later one has taken its place
            places = (run / "replay" / whole.parent.name, whole.parent)  # in the order in which they are written
            times = [one.stat().st_mtime for place in places for one in place.rglob("*") if one.is_file()]
            found.append(Saved(int(whole.parent.name), whole.stat().st_mtime, max(times) - min(times)))
    return sorted(found)


def killed(stage: Stage, words: Sequence[str], delay: float) -> Killed:
    """Begin a run or go on, and kill it `delay` seconds after its first checkpoint; or `-delay` after it began."""
    before = {one.at for one in saved(stage.run)}
    stage.main = stage.start([sys.executable, "-P", "-m", "boonta", "train", *words])
    if delay >= 0:
        stage.until("a checkpoint", lambda: {one.at for one in saved(stage.run)} - before)
    end = time.monotonic() + abs(delay)
    save = 0.0
    while time.monotonic() < end:
        save = max([save, *(one.took for one in saved(stage.run))])
        time.sleep(0.05)
    at = time.time()
    stage.main.kill()
    stage.main.wait(60.0)
    there = saved(stage.run)
    save = max([save, *(one.took for one in there)])
    return Killed(at - there[-1].at, save, there[-1].step) if there else Killed(0.0, save, None)


def drill(architecture: str, kills: int, chance: random.Random) -> list[Killed]:
    """Kill a run again and again; it goes on each time.

    Raises:
        RuntimeError: it did not go on from the checkpoint that was there.
    """
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        stage = Stage(Path(folder))
        new = [*RUNS[architecture], "--on", architecture, "--out", str(stage.run), "--set", "run.steps=1000000000"]
        for text in (f"checkpoint_minutes={EVERY / 60}", "checkpoint_every=1000000000", "eval_episodes=0"):
            new += ["--set", f"run.{text}"]
        new += ["--set", "run.log_every=10000"]
        found: list[Killed] = []
        try:
            for i in range(kills):
                begun = (stage.run / "run.json").exists()
                # Every fifth moment is in the start, where a run that goes on has written nothing yet.
                delay = -chance.uniform(0.0, 8.0) if i % 5 == 4 else chance.uniform(0.0, 3.0)
                found.append(killed(stage, ["--resume", str(stage.run)] if begun else new, delay))
                steps = [one.step for one in found if one.step is not None]
                if steps != sorted(steps):
                    raise RuntimeError(f"a run went on from another checkpoint than its last: {steps}")
                notes.print(f"{architecture}: kill {i + 1}, {found[-1]}")
            stage.main = stage.start([sys.executable, "-P", "-m", "boonta", "train", "--resume", str(stage.run)])
            last = found[-1].step or 0
            stage.until(
                "a checkpoint after the last kill", lambda: saved(stage.run) and saved(stage.run)[-1].step > last
            )
            stage.main.terminate()
            if stage.main.wait(120.0) != 128 + 15:
                raise RuntimeError(f"it did not end as it was asked to:\n{stage.said()[-3000:]}")
        finally:
            stage.end()
        return found


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Write kills.jsonl, a row for each architecture."""
    options = parser("kills", __doc__ or "", 20, module="kills", script="")
    options.set_defaults(prog="python -m benchmarks.kills")
    options.add_argument("--only", choices=RUNS, help="one architecture")
    args = parse(options, argv)
    shown = table("kill -9", "architecture", "kills", "lost s, median", "most", "slowest save s")
    rows = []
    for architecture in [args.only] if args.only else RUNS:
        found = drill(architecture, args.rounds, random.Random(0))
        # A kill in the start of a run loses nothing of it.
        lost = [one.seconds for i, one in enumerate(found) if i % 5 != 4]
        save = max(one.save for one in found)
        rows.append(row(args, architecture, "ours", lost, "s", facts={"kills": len(found), "due": EVERY, "save": save}))
        shown.add_row(
            architecture, str(len(found)), f"{rows[-1]['median']:.2f}", f"{rows[-1]['max']:.2f}", f"{save:.2f}"
        )
    return finish(args, rows, shown)


if __name__ == "__main__":
    try:
        main()
    except subprocess.TimeoutExpired as error:
        sys.exit(f"a run that was killed did not end: {error}")
