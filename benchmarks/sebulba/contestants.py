"""Contestants of Sebulba's benchmarks: whole runs, their parts alone, and Sample Factory."""

import atexit
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contestant import Compiled, Task, serve

SECONDS = 5.0  # of a measured run of a part
AHEAD = 4  # iterations before the clock starts, at least: what actors made while others had their turn


def ours(task: Task) -> Compiled:
    """A run of Boonta.

    The task: words (of `boonta train`, from AGENT on), iterations or steps (of one measured run), on (an architecture).
    """
    from boonta.core import totals

    system, seconds = system_of(task)
    atexit.register(system.close)
    held = [system.start()]
    iterations = task.get("iterations") or max(1, round(task["steps"] / system.steps))
    ahead = max(AHEAD, iterations // 10)
    held[0], _, _ = system.advance(held[0], ahead, _never)

    def run(seed: int) -> dict[str, Any]:
        del seed
        held[0], _, _ = system.advance(held[0], ahead, _never)
        held[0], made, seconds = system.advance(held[0], iterations, _never)
        shares = {key: x for key, x in totals.means(made).items() if key.startswith(("time/", "idle/", "policy_lag"))}
        idle = int(made.finished.count.sum())  # every episode's last act is
        return {"seconds": seconds, "steps": iterations * system.steps, "idle": idle} | shares

    return Compiled(run, seconds + system.compile_seconds, {"steps_per_iteration": system.steps, **system.describe()})


def environments(task: Task) -> Compiled:
    """The environments of one thread, with random actions."""
    import numpy as np

    from boonta.core.host import at_random

    system, seconds = system_of(task)
    envs = system.plan.envs
    batch = system.host.make(np.arange(envs, dtype=np.int32), 0, 0, system.workers)
    step = at_random(system.spec, batch, np.random.default_rng(0))

    def run(seed: int) -> dict[str, Any]:
        del seed
        return _repeated(step, envs)

    return Compiled(run, seconds, {})


def acting(task: Task) -> Compiled:
    """Acting on one device, observations handed over and actions taken back, trajectories not closed."""
    from boonta.architectures.sebulba_split import acting_alone

    system, seconds = system_of(task)
    envs = system.plan.envs
    begin = time.perf_counter()
    act = acting_alone(system.unit, system.spec, envs, system.plan.actors[0])
    return Compiled(lambda seed: _repeated(act, envs), seconds + time.perf_counter() - begin, {})


def learning(task: Task) -> Compiled:
    """Updates alone, on the same batch again and again."""
    from boonta.architectures.sebulba_split import learning_alone

    system, seconds = system_of(task)
    learn = learning_alone(system.unit, system.spec, system.plan.envs, system.plan.learners)
    return Compiled(lambda seed: _repeated(learn, system.steps), seconds, {})


def replicas(task: Task) -> Compiled:
    """Several processes, each with its environments and its learner, as whole runs of the command line.

    The task: words (of `boonta train`, from AGENT on), processes, steps (of a run).
    """
    agent, env, *rest = task["words"]
    words = [sys.executable, "-P", "-m", "boonta", "train", agent, env, "--on", "sebulba", "--json"]
    words += ["--steps", str(task["steps"]), *(word for setting in rest for word in ("--set", setting))]

    def run(seed: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            words_of = []
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                meeting = f"127.0.0.1:{free.getsockname()[1]}"
            for i in range(task["processes"]):
                several = ["--coordinator", meeting, "--processes", str(task["processes"]), "--process", str(i)]
                many = several if task["processes"] > 1 else []
                words_of.append([*words, "--seed", str(seed), "--out", f"{folder}/run", *many])
            started = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for one in words_of]
            lead, *_ = [one.communicate(timeout=900)[0] for one in started]
        summary = json.loads(lead.splitlines()[-1])
        return {"seconds": summary["seconds"], "steps": summary["env_steps"], "idle": 0}

    return Compiled(run, 0.0, {})


def sample_factory(task: Task) -> Compiled:
    """Sample Factory's asynchronous PPO: a run of its own each time, timed once it is going.

    The task: options (of its command line), steps (agent steps of a run), timed (of these, how many at the end).
    """
    launcher = Path(__file__).with_name("launch_sample_factory.py")

    def run(seed: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                *(sys.executable, str(launcher), "--env=atari_pong", "--experiment=run", f"--train_dir={folder}"),
                *("--device=cpu", f"--seed={seed}", f"--train_for_env_steps={task['steps'] * 4}", *task["options"]),
            ]
            log = Path(folder) / "log"
            with log.open("wb") as out:
                subprocess.run(words, check=False, stdout=out, stderr=out, timeout=600, cwd=folder)
            text = log.read_text("utf-8", "replace")
        # It tells the frames (four a step) it has learned from, every five seconds, with the time of day.
        told = re.findall(r"\[(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+),(\d+)\].*Total num frames: (\d+)", text)
        points = [
            (3600 * int(h) + 60 * int(m) + int(s) + int(ms) / 1000, int(frames) / 4)
            for *_, h, m, s, ms, frames in told
            if int(frames) > 0
        ]
        if len(points) < 4:
            raise RuntimeError(f"Sample Factory told too little:\n{text[-3000:]}")
        (begin, before), (end, after) = points[1], points[-1]
        return {"seconds": (end - begin) % 86400, "steps": after - before, "idle": 0}

    return Compiled(run, 0.0, {})


def _never() -> bool:
    return False


def system_of(task: Task) -> tuple[Any, float]:
    """The architecture's half of a run, by default on Sebulba, and the seconds that building it took."""
    from boonta.experiments import config, systems

    agent, env, *rest = task["words"]
    begin, on = time.perf_counter(), task.get("on", "sebulba")
    made = systems.build(config.resolve(agent, env, on, assignments=rest, run={"steps": 10**9}))
    return made, time.perf_counter() - begin


def _repeated(what: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Call it for a while; the first call is not timed."""
    what()
    begin, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - begin) < SECONDS:
        what()
        count += 1
    return {"seconds": seconds, "steps": count * steps, "idle": 0}


KINDS: dict[str, Callable[[Task], Compiled]] = {
    "ours": ours,
    "environments": environments,
    "acting": acting,
    "learning": learning,
    "replicas": replicas,
    "sample_factory": sample_factory,
}

if __name__ == "__main__":
    serve(KINDS)
