"""What there is to do with a run that exists: evaluate it, film it, look it over."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import imageio.v3 as iio
import numpy as np

from boonta.core.types import Params
from boonta.experiments import config as configuration
from boonta.experiments import evaluation, files, members, systems
from boonta.experiments import record as records
from boonta.experiments.checkpoint import Checkpoints
from boonta.experiments.config import Config
from boonta.experiments.systems import System, protocol

FPS = 30
SHORT, SLOW = 60, 8  # films of fewer frames are shown at so many a second


class Run(NamedTuple):
    """A run folder opened: its configuration, what that makes, and one member's trained parameters."""

    folder: Path
    config: Config
    system: System
    params: Params
    facts: dict[str, Any]


def config_of(folder: Path) -> Path:
    """Where the configuration of the run in `folder` is.

    Raises:
        FileNotFoundError: it is no run folder.
    """
    if not (folder / "config.toml").is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no config.toml")
    return folder / "config.toml"


def open_run(folder: Path, which: int | str = "latest", member: int = 0) -> Run:
    """Open a run on one device, whatever devices trained it.

    Args:
        folder: the run folder.
        which: "latest", "best", or the step count of a checkpoint.
        member: of a population.

    Raises:
        FileNotFoundError: no run, or no such checkpoint.
        ValueError: no such member, or no readable checkpoint.
    """
    folder, member = members.place(folder, member)
    config = configuration.load(config_of(folder))
    if which == "best" and not config.run.eval_episodes:
        raise ValueError("--checkpoint best: the run was never evaluated (run.eval_episodes=0); take latest or a step")
    system = systems.build(configuration.alone(config))
    protocol.check_reading(folder, config, system)
    if not 0 <= member < len(system.members):
        raise ValueError(f"--member must be 0 to {len(system.members) - 1}, got {member}")
    checkpoints = Checkpoints(folder, config.run.keep)
    found = checkpoints.restore(system.shapes(), which)
    checkpoints.close()
    for message in found.passed_over:
        print(f"boonta: WARNING: {message}; using the one before", file=sys.stderr)
    return Run(folder, config, system, system.params(found.state, member), found.facts)


def member_name(run: Run, folder: Path, member: int) -> str:
    """What a member of the run, or of the runs, in `folder` is called."""
    if members.there(folder):
        return str(files.read_json(folder / "run.json")["members"][member])
    return run.system.members[member].name


def evaluate(run: Run, episodes: int) -> dict[str, Any]:
    """Greedy episodes of a run's parameters: the summary that `--json` prints."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")

    run.system.progress = lambda text: print(text, file=sys.stderr)
    scores = run.system.play(run.params, episodes)
    if told := evaluation.cut_short(scores, run.config.run.eval_steps):
        print(f"boonta: WARNING: {told}", file=sys.stderr)
    return evaluation.statistics(scores) | {
        "eval_length_mean": float(np.mean(scores.lengths)),
        "env_steps": run.facts["env_steps"],
        "out": str(run.folder),
    }


def watch(run: Run, out: Path, steps: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Film one greedy episode into `out`, a .gif or an .mp4.

    Raises:
        ValueError: another ending, or an environment that cannot be drawn.
    """
    if out.suffix not in (".gif", ".mp4"):
        raise ValueError(f"--out must end in .gif or .mp4, got {out.name!r}")
    if steps < 1:
        raise ValueError(f"--steps must be at least 1, got {steps}")
    film = run.system.film(run.params, seed, steps)
    frames, rate = np.stack(film.frames), FPS
    if len(frames) < SHORT:
        rate = SLOW
    elif out.suffix == ".gif":  # whose players know no more frames a second
        frames, rate = np.concatenate([frames[:-1:2], frames[-1:]]), FPS // 2
    frames = np.concatenate([frames, np.repeat(frames[-1:], rate, axis=0)])  # the end stands for a second
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.stem}.tmp{out.suffix}")
    beside.unlink(missing_ok=True)  # it may be somebody's link to elsewhere
    try:
        if out.suffix == ".gif":
            iio.imwrite(beside, frames, duration=1000 / rate, loop=0)
        else:
            # Else a fork starts ffmpeg, and there hooks of gRPC meddle with its files.
            os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
            iio.imwrite(beside, frames, fps=rate, codec="libx264", macro_block_size=1)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return {"out": str(out), "frames": len(frames), "return": film.total, "whole": film.whole}


def inspect(folder: Path) -> dict[str, Any]:
    """What is in a run folder: its status and its checkpoints. Nothing of what it names is imported.

    Raises:
        FileNotFoundError: it is no run folder.
    """
    if members.there(folder):
        return {"members": [inspect(one) for one in members.folders(folder)]}
    tables = configuration.tables_of(config_of(folder))
    record = records.read(folder)
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()
    checkpoints.close()
    return {
        **{table: tables[table]["name"] for table in configuration.NAMED},
        "status": record["status"],
        "cause": record["cause"],
        "checkpoints": steps,
        "result": record.get("result"),
    }
