"""A run on SEED that may be harmed: a server process, and actor processes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import drilled

ACTORS, ENVS, SPARE = 5, 8, 8  # actors, environments of each, environments that nobody has
SETTINGS = {
    "architecture.envs": ACTORS * ENVS + SPARE, "architecture.maximum": ACTORS * ENVS,
    "architecture.silence": 5.0, "run.evaluate_every": 20_000, "run.checkpoint_every": 20_000, "run.log_every": 4_000,
    "run.eval_episodes": 10,
}  # fmt: skip


class Stage(drilled.Stage):
    """A server and its actors."""

    def __init__(self, folder: Path, agent: str, settings: dict[str, Any]) -> None:
        super().__init__(folder)
        self.agent, self.settings, self.address = agent, SETTINGS | settings, f"unix:{folder}/socket"
        self.actors: list[subprocess.Popen[bytes]] = []

    def serve(self, resume: bool = False, before: str = "", more: Sequence[str] = ()) -> None:
        """Start the server, or go on with its run. `before`: Python that its process begins with; `more`: options."""
        words = ["serve", "--json"]
        if resume:
            words += ["--resume", str(self.run)]
            self.forget()
        else:
            words += [self.agent, "gym:CartPole-v1", "--steps", "1000000000", "--address", self.address]
            words += ["--out", str(self.run), "--config", "none"]
            words += [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        code = f"{before}\nfrom boonta.cli import run\nrun()"
        self.main = self.start([sys.executable, "-c", code, *words, *more])

    def act(self, i: int, env: str = "gym:CartPole-v1", address: str = "") -> subprocess.Popen[bytes]:
        """Start the actor of the i-th share of the environments."""
        return self.start(self.actor(i, env, address))

    def actor(self, i: int, env: str = "gym:CartPole-v1", address: str = "") -> list[str]:
        """The command of that."""
        words = [env, "--server", address or self.address, "--envs", str(ENVS), "--first", str(i * ENVS)]
        return [sys.executable, "-P", "-m", "boonta", "actor", *words, "--name", f"actor {i}"]

    def act_all(self) -> None:
        """Start all actors."""
        self.actors = [self.act(i) for i in range(ACTORS)]

    def begin(self) -> None:
        """A server, all actors there, and a first checkpoint."""
        self.serve()
        self.act_all()
        self.until("all actors", lambda: self.last("clients/environments") == ACTORS * ENVS)
        self.until("the first checkpoint", self.saved)

    def joined(self, more: int) -> Callable[[], bool]:
        """Whether so many more clients have joined than now."""
        before = self.last("clients/joined")
        return lambda: self.last("clients/joined") >= before + more

    def dropped(self, more: int) -> Callable[[], bool]:
        """Whether so many more clients have gone than now."""
        before = self.last("clients/dropped")
        return lambda: self.last("clients/dropped") >= before + more
