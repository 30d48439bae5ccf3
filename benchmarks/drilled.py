"""What the drills of every architecture share: a run that may be harmed, and what must have come of it at the end."""

import os
import signal
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import ROOT, Row, finish, notes, parse, row, table
from boonta.experiments.files import read_json
from boonta.experiments.metrics import read_metrics

REACHED = ("eval_return_mean", "seconds_to_bar", "env_steps")

Facts = dict[str, Any]


class Stage:
    """A run whose processes may be harmed: the one that learns, the others, what it logs and what all of them say.

    Attributes:
        run: the run's folder.
        main: the process that logs and saves; `start` gives one, for whoever makes a stage to keep here.
        bar: mean return in evaluation that shows that it still learns; of CartPole's 500.
        limit: seconds that a drill waits for anything.
    """

    main: subprocess.Popen[bytes]
    bar, limit = 400.0, 600.0

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        self.log = (folder / "log").open("ab")
        self._all: list[subprocess.Popen[bytes]] = []
        self._past: set[tuple[float, float]] = set()  # lines of the log before the run was resumed

    def start(self, words: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        """Start a command, with these environment variables too; it ends with the drill."""
        environment = os.environ | variables
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=self.log, cwd=ROOT, env=environment)
        self._all.append(process)
        return process

    def forget(self) -> None:
        """Look only at what is logged from now on, by a run that is resumed."""
        self._past = {_stamp(one) for one in self.rows()}

    def rows(self) -> list[Row]:
        """The lines of the log, of the run since it was begun or resumed."""
        there = read_metrics(self.run) if (self.run / "metrics.jsonl").is_file() else []
        return [one for one in there if _stamp(one) not in self._past]

    def last(self, key: str) -> float:
        """The latest value of a metric, 0 before the first."""
        return next((one[key] for one in reversed(self.rows()) if one.get(key) is not None), 0.0)

    def said(self) -> str:
        """All that its processes wrote to stderr."""
        return (self.folder / "log").read_text("utf-8", "replace")

    def saved(self) -> int:
        """The step of the last checkpoint, 0 if there is none."""
        return max((int(path.parent.name) for path in self.run.glob("checkpoints/[0-9]*/checksums.json")), default=0)

    def until(self, what: str, condition: Callable[[], Any]) -> float:
        """Wait for something; the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            if self.main.poll() is not None:
                raise RuntimeError(f"the run ended with code {self.main.returncode}:\n{self.said()[-3000:]}")
            if time.monotonic() > begin + self.limit:
                raise TimeoutError(f"waited {self.limit:g} s for {what}:\n{self.said()[-3000:]}")
            time.sleep(0.1)
        return time.monotonic() - begin

    def until_bar_reached(self) -> float:
        """Wait for an evaluation after now that reaches the bar; the seconds that it took."""
        since = self.last("env_steps")

        def reached() -> bool:
            scores = [one["eval/return_mean"] for one in self.rows() if one["env_steps"] > since and _scored(one)]
            return bool(scores) and scores[-1] >= self.bar

        return self.until(f"an evaluation of {self.bar:g} or more", reached)

    def learned(self) -> Facts:
        """Wait for an evaluation after now that reaches the bar; then end the run and see that it was saved."""
        seconds = self.until_bar_reached()
        self.main.send_signal(signal.SIGTERM)
        code = self.main.wait(120.0)
        state = read_json(self.run / "run.json")["status"]
        if code != 128 + signal.SIGTERM or state != "interrupted":
            raise RuntimeError(f"asked to end, the run was {state} with code {code}:\n{self.said()[-3000:]}")
        score = next(one["eval/return_mean"] for one in reversed(self.rows()) if _scored(one))
        return dict(zip(REACHED, (score, seconds, self.last("env_steps")), strict=True))

    def end(self) -> None:
        """Kill whatever is left."""
        for process in self._all:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.log.close()


S = TypeVar("S", bound=Stage)


def recovered(stage: S, drill: Callable[[S], Facts]) -> Facts:
    """What a drill told on a stage that ends with it; where it did not see to that itself, the run still learns."""
    try:
        facts = drill(stage)
        return facts if "eval_return_mean" in facts else facts | stage.learned()
    finally:
        stage.end()


def held(
    options: ArgumentParser, argv: Sequence[str] | None, title: str, drills: Mapping[str, Callable[[Path], Facts]]
) -> list[Row]:
    """Hold the drills that `--only` asks for; the rows written.

    Args:
        drills: by name, each given an empty folder. What it returns has the keys of `REACHED`, and what else is told.
    """
    options.add_argument("--only", help="drills whose name has this in it, or one of several with commas")
    args = parse(options, argv)
    chosen = {
        name: drill for name, drill in drills.items() if any(word in name for word in (args.only or "").split(","))
    }
    if not chosen:
        options.error(f"--only {args.only!r} is in none of: {', '.join(drills)}")
    rows: list[Row] = []
    shown = table(title, "drill", "return after", "seconds to that", "told")
    for name, drill in chosen.items():
        with tempfile.TemporaryDirectory(prefix="drill-") as folder:
            facts = drill(Path(folder))
        reached = {key: facts[key] for key in REACHED}
        told = {key: value for key, value in facts.items() if key not in REACHED}
        rows.append(row(args, name, "ours", [facts["eval_return_mean"]], "return", **reached, facts=told))
        words = ", ".join(f"{key} {value:.4g}" for key, value in told.items() if isinstance(value, int | float))
        shown.add_row(name, f"{facts['eval_return_mean']:.0f}", f"{facts['seconds_to_bar']:.0f}", words)
        notes.print(f"{name}: {words}; {facts['eval_return_mean']:.0f}")
    return finish(args, rows, shown)


@contextmanager
def namespaces() -> Iterator[list[str]]:
    """Two network namespaces that reach this one at 10.77.0.1 and 10.77.1.1."""
    names = [f"boonta-{os.getpid()}-{i}" for i in range(2)]
    try:
        for i, name in enumerate(names):
            for words in (
                f"netns add {name}",
                f"link add boonta{i} type veth peer name inside netns {name}",
                f"addr add 10.77.{i}.1/24 dev boonta{i}",
                f"link set boonta{i} up",
                f"-n {name} addr add 10.77.{i}.2/24 dev inside",
                f"-n {name} link set inside up",
            ):
                subprocess.run(["ip", *words.split()], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _scored(one: Row) -> bool:
    return one.get("eval/return_mean") is not None


def _stamp(one: Row) -> tuple[float, float]:
    return one["env_steps"], one["seconds"]
