"""Drills: a split run is harmed, must count it, go on, and still learn.

DDPG on Pendulum with two processes of environments. After the harm was counted an evaluation must reach the bar; then
the run is asked to end, and must have been saved. Nothing may be left of it: no process, no file in /dev/shm.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from benchmarks import drilled
from benchmarks.common import Row, parser
from benchmarks.drilled import Facts, held, recovered

SETTINGS = {
    "agent.hidden": "64,64", "agent.value_batch": 128, "agent.policy_batch": 128, "agent.capacity": 50_000,
    "architecture.environments": 2, "architecture.timeout": 20, "run.evaluate_every": 4_000,
    "run.checkpoint_every": 2_000, "run.log_every": 500, "run.eval_episodes": 10,
}  # fmt: skip
SHARED = Path("/dev/shm")


class Stage(drilled.Stage):
    """The driver of a split run and its processes."""

    bar = -250.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.before = _shared()
        self.before_all: list[str] = []  # what the driver's command line begins with

    def train(self, resume: bool = False, more: Sequence[str] = (), env: str = "gym:Pendulum-v1") -> None:
        """Start the driver, or go on with its run."""
        words = ["ddpg", env, "--on", "split", "--steps", "100000000", "--out", str(self.run)]
        words += ["--config", "none", *(word for key, x in SETTINGS.items() for word in ("--set", f"{key}={x}")), *more]
        if resume:
            self.forget()
            words = ["--resume", str(self.run)]
        self.main = self.start([*self.before_all, sys.executable, "-P", "-m", "boonta", "train", *words, "--json"])

    def begin(self, more: Sequence[str] = (), env: str = "gym:Pendulum-v1") -> None:
        """A run that learns, and has been saved."""
        self.train(more=more, env=env)
        self.until("updates", lambda: self.last("updates/value") > 0)
        self.until("the first checkpoint", self.saved)

    def processes(self) -> dict[str, int]:
        """The run's processes by role."""
        found = {}
        for process in psutil.Process(self.main.pid).children():
            words = process.cmdline()
            if "split-worker" in words:
                found[words[words.index("--role") + 1]] = process.pid
        return found

    def replaced(self, role: str) -> Facts:
        """Wait until a process of this role, or of roles that begin so, was replaced and learning goes on."""
        before, died = self.last("updates/value"), re.compile(rf"{role}\d* died")
        seconds = self.until(f"{role} to be replaced", lambda: died.search(self.said()))
        since = self.last("env_steps")
        self.until("the run to go on", lambda: self.last("env_steps") > since + 2_000)
        if self.last("updates/value") < before:
            raise RuntimeError(f"updates were lost: {before} before, {self.last('updates/value')} after")
        return {"noticed_seconds": seconds, "restarts": self.last("restarts"), "lost": self.last("lost/value")}

    def end(self) -> None:
        """Kill whatever is left, which is nothing."""
        super().end()
        left = [
            one for one in psutil.process_iter(["cmdline"]) if str(self.folder) in " ".join(one.info["cmdline"] or [])
        ]
        until = time.monotonic() + 20.0
        while (more := _shared() - self.before) and time.monotonic() < until:
            time.sleep(0.1)
        if left or more:
            raise RuntimeError(f"the run left {left} and {more} behind")


def kill(role: str) -> Callable[[Stage], Facts]:
    """kill -9 of a process; another takes its place."""

    def drill(stage: Stage) -> Facts:
        stage.begin()
        os.kill(stage.processes()[role], signal.SIGKILL)
        return stage.replaced(role)

    return drill


def hang(role: str) -> Callable[[Stage], Facts]:
    """A process that is stopped does not move, and is replaced."""

    def drill(stage: Stage) -> Facts:
        stage.begin()
        os.kill(stage.processes()[role], signal.SIGSTOP)
        return stage.replaced(role)

    return drill


def several(stage: Stage) -> Facts:
    """One of two processes that share the value's batch is killed; both are replaced."""
    stage.begin(["--set", "architecture.value_processes=2"])
    os.kill(stage.processes()["value/1"], signal.SIGKILL)
    return stage.replaced("value/")


def driver(stage: Stage) -> Facts:
    """kill -9 of the driver: its processes end, and the run goes on from its checkpoint with the replay."""
    stage.begin()
    theirs, saved = list(stage.processes().values()), stage.saved()
    stage.main.kill()
    stage.main.wait()
    begin = time.monotonic()
    while any(psutil.pid_exists(pid) for pid in theirs):
        if time.monotonic() > begin + 30.0:
            raise RuntimeError("processes outlive their driver")
        time.sleep(0.1)
    seconds = time.monotonic() - begin
    stage.train(resume=True)
    stage.until("the run to go on", lambda: stage.last("env_steps") > saved)
    if "replay" in stage.said():
        raise RuntimeError(f"the replay was lost:\n{stage.said()}")
    return {"processes_ended_seconds": seconds, "resumed_from": saved}


def full(stage: Stage) -> Facts:
    """With a /dev/shm that is full, its own and small, a run goes on, as nothing of it is there."""
    fill = 'mount -t tmpfs -o size=64k none /dev/shm && head -c 65536 /dev/zero > /dev/shm/filler; exec "$@"'
    stage.before_all = ["unshare", "--mount", "sh", "-c", fill, "full"]
    stage.begin()
    return {"updates": stage.last("updates/value")}


def memory(stage: Stage) -> Facts:
    """A replay that does not fit is refused before anything starts; one that does is not."""
    words = ["ddpg", "gym:Pendulum-v1", "--on", "split", "--config", "none", "--out", str(stage.folder / "too-large")]
    words += ["--set", "agent.capacity=100000000000"]
    refused = subprocess.run([sys.executable, "-P", "-m", "boonta", "train", *words], capture_output=True, text=True)
    if not refused.returncode or "of shared memory are needed" not in refused.stderr:
        raise RuntimeError(f"not refused: {refused.returncode}\n{refused.stderr}")
    stage.begin()
    return {"refused_with": refused.returncode}


def undeclared(stage: Stage) -> Facts:
    """A second value process that nobody declared is refused, and the run does not notice."""
    stage.begin()
    words = ["split-worker", "--role", "value/1", "--transport", "shm:0", "--config", str(stage.run / "config.toml")]
    refused = subprocess.run(
        [sys.executable, "-P", "-m", "boonta", *words], capture_output=True, text=True, stdin=subprocess.PIPE
    )
    if not refused.returncode or "value/1" not in refused.stderr:
        raise RuntimeError(f"not refused: {refused.returncode}\n{refused.stderr}")
    return {"refused_with": refused.returncode, "restarts": stage.last("restarts")}


def not_finite(stage: Stage) -> Facts:
    """An environment that gives NaN once is replaced, and nothing of it is learned from."""
    more = ["--on-nan", "drop", "--set", f"env.mark={stage.folder / 'mark'}"]
    stage.begin(more, env="benchmarks.split.spoilt:make")
    return stage.replaced("environment/")


DRILLS: dict[str, Callable[[Stage], Facts]] = {
    "kill -9 of an environment process": kill("environment/1"),
    "kill -9 of the value process": kill("value/0"),
    "kill -9 of the policy process": kill("policy/0"),
    "kill -9 of one of two value processes": several,
    "an environment process that hangs": hang("environment/0"),
    "a value process that hangs": hang("value/0"),
    "kill -9 of the driver": driver,
    "/dev/shm full": full,
    "a replay larger than memory": memory,
    "a value process that was not declared": undeclared,
    "a transition that is NaN": not_finite,
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Hold all drills; the rows written."""
    options = parser("split_drills", __doc__ or "", rounds=1, module="split", script="drills")
    drills = {name: partial(_held, drill) for name, drill in DRILLS.items()}
    return held(options, argv, "A split run that is harmed", drills)


def _held(drill: Callable[[Stage], Facts], folder: Path) -> Facts:
    return recovered(Stage(folder), drill)


def _shared() -> set[str]:
    return set(os.listdir(SHARED)) if SHARED.is_dir() else set()


if __name__ == "__main__":
    main()
