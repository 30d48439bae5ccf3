"""Drills: a fleet is harmed, must count it, go on, and still learn.

DQN on CartPole, members on a Ray of the run's own, or, where its head is harmed, on a cluster that the drill starts.
After the harm was counted an evaluation must reach the bar; then the run is asked to end, and must have been saved.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import drilled
from benchmarks.common import Row, parser
from benchmarks.drilled import Facts, held, recovered

SETTINGS = {
    "agent.batch": 256, "agent.unroll": 8, "agent.capacity": 50_000, "agent.minimum": 1_000, "agent.replay_ratio": 16,
    "agent.learning_rate": 1e-3, "agent.target_interval": 100, "agent.n_step": 10, "agent.explore_for": 0.0005,
    "architecture.training_workers": 2, "architecture.envs": 8, "architecture.timeout": 20,
    "run.evaluate_every": 20_000, "run.checkpoint_every": 10_000, "run.log_every": 4_000, "run.eval_episodes": 10,
}  # fmt: skip


class Stage(drilled.Stage):
    """The driver of a fleet and its members."""

    def train(self, resume: bool = False, more: Sequence[str] = ()) -> None:
        """Start the driver, or go on with its run."""
        words = ["dqn", "gym:CartPole-v1", "--on", "fleet", "--steps", "100000000", "--out", str(self.run)]
        words += ["--config", "none", *(word for key, x in SETTINGS.items() for word in ("--set", f"{key}={x}")), *more]
        if resume:
            self.forget()
            words = ["--resume", str(self.run)]
        self.main = self.start([sys.executable, "-P", "-m", "boonta", "train", *words, "--json"])

    def begin(self, more: Sequence[str] = ()) -> None:
        """A driver, a checkpoint, and a replay in use."""
        self.train(more=more)
        self.until("a replay in use", lambda: self.last("replay/samples_per_insert") > 0)
        self.until("the first checkpoint", self.saved)

    def member(self, name: str) -> int:
        """The process number of a member, by what Ray calls its process."""
        for process in psutil.process_iter(["cmdline"]):
            if " ".join(process.info["cmdline"] or []).startswith(f"ray::{name}"):
                return process.pid
        raise RuntimeError(f"there is no member {name}")

    def replaced(self, name: str) -> float:
        """Wait until a member was replaced and learning goes on; the seconds until it was missed."""
        seconds = self.until(f"{name} to be replaced", lambda: f"{name} is replaced" in self.said())
        since = self.last("env_steps")
        self.until("the run to go on", lambda: self.last("env_steps") > since + 10_000)
        return seconds


def kill(name: str, told: str) -> Callable[[Stage], dict[str, Any]]:
    """kill -9 of a member; another takes its place."""

    def drill(stage: Stage) -> dict[str, Any]:
        stage.begin()
        os.kill(stage.member(name), signal.SIGKILL)
        return {"noticed_seconds": stage.replaced(told), "restarts": stage.last("restarts")}

    return drill


def hang(stage: Stage) -> dict[str, Any]:
    """A training worker that stops answers nothing, and is replaced."""
    stage.begin()
    os.kill(stage.member("TrainingWorker0"), signal.SIGSTOP)
    return {"noticed_seconds": stage.replaced("training worker 0"), "restarts": stage.last("restarts")}


def kill_driver(stage: Stage) -> dict[str, Any]:
    """kill -9 of the driver, and with it a Ray of its own: resumed, it goes on with its replay."""
    stage.begin()
    stage.main.kill()
    stage.main.wait()
    return _resumed(stage)


class Cluster:
    """A Ray cluster of nodes on this machine, which ends with the drill."""

    def __init__(self, stage: Stage) -> None:
        shown = os.environ | {"RAY_AUTH_MODE": "token"}
        self._quiet: dict[str, Any] = {"stdout": stage.log, "stderr": stage.log, "env": shown}
        self._ray = str(Path(sys.executable).with_name("ray"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"

    def head(self, cpus: int) -> None:
        """Start the first node."""
        port = self.address.rpartition(":")[2]
        self._run("start", "--head", f"--port={port}", f"--num-cpus={cpus}", "--include-dashboard=false")

    def node(self, cpus: int) -> int:
        """Start another; the process number of what runs it."""
        there = self._nodes()
        self._run("start", f"--address={self.address}", f"--num-cpus={cpus}")
        (new,) = self._nodes() - there
        return new

    def stop(self) -> None:
        """End all nodes."""
        self._run("stop", "--force", check=False)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, *words: str, check: bool = True) -> None:
        subprocess.run([self._ray, *words], check=check, **self._quiet)

    def _nodes(self) -> set[int]:
        return {one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == "raylet"}


def head(stage: Stage) -> dict[str, Any]:
    """The head of a cluster goes away: the run fails and says so; when there is a head again it goes on."""
    with Cluster(stage) as cluster:
        cluster.head(8)
        stage.begin(more=["--cluster", cluster.address])
        cluster.stop()
        begin = time.monotonic()
        code = stage.main.wait(stage.limit)
        noticed = time.monotonic() - begin
        if code == 0:
            raise RuntimeError(f"without its cluster the run ended with code 0:\n{stage.said()[-3000:]}")
        cluster.head(8)
        return {"code": code, "noticed_seconds": noticed} | _resumed(stage) | stage.learned()


def node(stage: Stage) -> dict[str, Any]:
    """A machine of the cluster dies, and there is no room for its members elsewhere until another one comes."""
    with Cluster(stage) as cluster:
        cluster.head(4)
        lost = cluster.node(2)
        stage.begin(more=["--cluster", cluster.address])
        os.kill(lost, signal.SIGKILL)
        noticed = stage.until("its members to be missed", lambda: "is replaced" in stage.said())
        since = stage.last("env_steps")
        stage.until("the others to go on", lambda: stage.last("env_steps") > since + 10_000)
        cluster.node(2)
        return {"noticed_seconds": noticed, "restarts": stage.last("restarts")} | stage.learned()


def _resumed(stage: Stage) -> dict[str, Any]:
    """Go on; what was in replay before and after."""
    saved = stage.saved()
    before = next(one for one in reversed(stage.rows()) if one["env_steps"] <= saved and "updates" in one)
    stage.train(resume=True)
    stage.until("it to go on", lambda: any("updates" in one for one in stage.rows()))
    after = next(one for one in stage.rows() if "updates" in one)
    if after["updates"] <= before["updates"] or after["replay/windows"] < before["replay/windows"]:
        raise RuntimeError(f"the run lost something:\n{before}\n{after}")
    facts = {"saved_at": saved, "windows_before": before["replay/windows"], "windows_after": after["replay/windows"]}
    return facts | {"updates_before": before["updates"], "updates_after": after["updates"]}


DRILLS: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "kill -9 of a training worker": kill("TrainingWorker1", "training worker 1"),
    "kill -9 of the replay buffer": kill("ReplayBuffer", "replay buffer"),
    "kill -9 of the parameter server": kill("ParameterServer", "parameter server"),
    "a training worker hangs": hang,
    "kill -9 of the driver": kill_driver,
    "a machine of the cluster dies": node,
    "the cluster's head restarts": head,
}


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the drills; the rows it wrote."""
    options = parser("fleet_drills", __doc__ or "", rounds=1, module="planning")
    return held(options, argv, "Drills on the fleet", {name: partial(_held, drill) for name, drill in DRILLS.items()})


def _held(drill: Callable[[Stage], Facts], folder: Path) -> Facts:
    return recovered(Stage(folder), drill)


if __name__ == "__main__":
    main()
