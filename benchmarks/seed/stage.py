"""A run on SEED that may be harmed: a server process, actor processes, and what they log and say."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from boonta.experiments.files import read_json
from boonta.experiments.metrics import read_metrics

BAR = 400.0  # mean return in evaluation, of 500
LIMIT = 400.0  # seconds that a drill waits for anything
ACTORS, ENVS, SPARE = 5, 8, 8  # actors, environments of each, environments that nobody has
SETTINGS = {
    "architecture.envs": ACTORS * ENVS + SPARE, "architecture.maximum": ACTORS * ENVS,
    "architecture.silence": 5.0, "run.evaluate_every": 20_000, "run.checkpoint_every": 20_000, "run.log_every": 4_000,
    "run.eval_episodes": 10,
}  # fmt: skip


class Stage:
    """A server, its actors, and what they say."""

    def __init__(self, folder: Path, agent: str, settings: dict[str, Any]) -> None:
        self.folder, self.run, self.agent, self.settings = folder, folder / "run", agent, SETTINGS | settings
        self.address = f"unix:{folder}/socket"
        self.actors: list[subprocess.Popen[bytes]] = []
        self._all: list[subprocess.Popen[bytes]] = []
        self._past: set[tuple[float, float]] = set()  # lines of the log before the run was resumed
        self._log = (folder / "log").open("ab")

    def serve(self, resume: bool = False, before: str = "", more: Sequence[str] = ()) -> None:
        """Start the server, or go on with its run. `before`: Python that its process begins with; `more`: options."""
        words = ["serve", "--json"]
        if resume:
            words += ["--resume", str(self.run)]
            self._past = {_stamp(row) for row in self.rows()}
        else:
            words += [self.agent, "gym:CartPole-v1", "--steps", "1000000000", "--address", self.address]
            words += ["--out", str(self.run), "--config", "none"]
            words += [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        code = f"{before}\nfrom boonta.cli import run\nrun()"
        self.server = self.start([sys.executable, "-c", code, *words, *more])

    def act(self, i: int, env: str = "gym:CartPole-v1", address: str = "") -> subprocess.Popen[bytes]:
        """Start the actor of the i-th share of the environments."""
        return self.start(self.actor(i, env, address))

    def actor(self, i: int, env: str = "gym:CartPole-v1", address: str = "") -> list[str]:
        """The command of that."""
        words = [env, "--server", address or self.address, "--envs", str(ENVS), "--first", str(i * ENVS)]
        return [sys.executable, "-m", "boonta", "actor", *words, "--name", f"actor {i}"]

    def act_all(self) -> None:
        """Start all actors."""
        self.actors = [self.act(i) for i in range(ACTORS)]

    def begin(self) -> None:
        """A server, all actors there, and a first checkpoint."""
        self.serve()
        self.act_all()
        self.until("all actors", lambda: self.last("clients/environments") == ACTORS * ENVS)
        self.until("the first checkpoint", lambda: any(self.run.glob("checkpoints/*/checksums.json")))

    def rows(self) -> list[dict[str, Any]]:
        """The lines of the log, of the server as it runs now."""
        there = read_metrics(self.run) if (self.run / "metrics.jsonl").is_file() else []
        return [row for row in there if _stamp(row) not in self._past]

    def last(self, key: str) -> float:
        """The latest value of a metric, 0 before the first."""
        return next((row[key] for row in reversed(self.rows()) if row.get(key) is not None), 0.0)

    def said(self) -> str:
        """All that server and actors wrote to stderr."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def until(self, what: str, condition: Callable[[], Any]) -> float:
        """Wait for something; the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            if self.server.poll() is not None:
                raise RuntimeError(f"the server ended with code {self.server.returncode}:\n{self.said()[-3000:]}")
            if time.monotonic() > begin + LIMIT:
                raise TimeoutError(f"waited {LIMIT:g} s for {what}:\n{self.said()[-3000:]}")
            time.sleep(0.1)
        return time.monotonic() - begin

    def joined(self, more: int) -> Callable[[], bool]:
        """Whether so many more clients have joined than now."""
        before = self.last("clients/joined")
        return lambda: self.last("clients/joined") >= before + more

    def dropped(self, more: int) -> Callable[[], bool]:
        """Whether so many more clients have gone than now."""
        before = self.last("clients/dropped")
        return lambda: self.last("clients/dropped") >= before + more

    def learned(self) -> dict[str, Any]:
        """Wait for an evaluation after now that reaches the bar; then end the run and see that it was saved."""
        since = self.last("env_steps")

        def reached() -> bool:
            scores = [row["eval/return_mean"] for row in self.rows() if row["env_steps"] > since and _scored(row)]
            return bool(scores) and scores[-1] >= BAR

        seconds = self.until(f"an evaluation of {BAR:g} or more", reached)
        self.server.send_signal(signal.SIGTERM)
        code = self.server.wait(60.0)
        state = read_json(self.run / "run.json")["status"]
        if code != 128 + signal.SIGTERM or state != "interrupted":
            raise RuntimeError(f"asked to end, the server was {state} with code {code}:\n{self.said()[-3000:]}")
        score = next(row["eval/return_mean"] for row in reversed(self.rows()) if _scored(row))
        return {"eval_return_mean": score, "seconds_to_bar": seconds, "env_steps": self.last("env_steps")}

    def end(self) -> None:
        """Kill whatever is left."""
        for process in self._all:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._log.close()

    def start(self, words: list[str], **variables: str) -> subprocess.Popen[bytes]:
        """Start a command, with these environment variables too; it ends with the drill."""
        environment = os.environ | variables
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=self._log, cwd=ROOT, env=environment)
        self._all.append(process)
        return process


def _scored(row: dict[str, Any]) -> bool:
    return row.get("eval/return_mean") is not None


def _stamp(row: dict[str, Any]) -> tuple[float, float]:
    return row["env_steps"], row["seconds"]
