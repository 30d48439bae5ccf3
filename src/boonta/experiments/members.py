"""Seeds and settings that no one program holds: a run folder for each, trained by processes of their own.

The parent folder has the configuration of the whole, `run.json` and `members/I/`, each a run folder like any other.
"""

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from boonta.core.signals import ENDING
from boonta.experiments import config as configuration
from boonta.experiments import files, machine, trust
from boonta.experiments.claim import claimed
from boonta.experiments.config import Config
from boonta.experiments.parts import age

FOLDER = "members"
LOOK = 0.2  # seconds between looks at the processes
MEMORY = 1.2e9  # bytes that a process takes, about
STATISTICS = ("eval_return_mean", "eval_return_std", "eval_episodes", "eval_cut_short")


class Stopped(Exception):
    """A signal ended them; all were saved.

    Args:
        number: of the signal.
        message: what to tell.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


class Failed(Exception):
    """One of them failed; the message says which."""


def there(folder: Path) -> bool:
    """Whether a folder is one of several runs, which lie in it and not beyond a link."""
    return (folder / FOLDER).is_dir() and not (folder / FOLDER).is_symlink()


def place(folder: Path, member: int) -> tuple[Path, int]:
    """The run folder of a member, and which of that folder's population it is.

    Raises:
        ValueError: there is no such member.
    """
    if not there(folder):
        return folder, member
    count = len(folders(folder))
    if not 0 <= member < count:
        raise ValueError(f"--member must be 0 to {count - 1}, got {member}")
    return folder / FOLDER / str(member), 0


def begin(folder: Path, config: Config, made: Sequence[Config]) -> None:
    """Lay out the folders.

    Args:
        folder: the parent.
        config: of the whole.
        made: of each member.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, one in enumerate(made):
        _lay_out(folder / FOLDER / str(i), one, {"status": "waiting", "cause": None, "seed": one.run.seed})
    names = [name for _, _, name in configuration.points(config)]
    facts = {"versions": machine.versions(), "machine": machine.machine(), "commit": machine.commit()}
    facts |= {"command": " ".join(sys.argv), "started": _now(), "members": names}
    _lay_out(folder, config, {"status": "running", "cause": None, **facts})


def train(folder: Path, jobs: int, quiet: bool) -> dict[str, Any]:
    """Train those that are not done, so many at a time; the summary of all.

    Args:
        folder: the parent.
        jobs: processes at a time.
        quiet: whether they show no progress.

    Raises:
        Failed: one of them did; the others that were running were ended, and saved.
        Stopped: by a signal.
    """
    if told := _crowded(jobs):
        print(f"boonta: WARNING: {told}", file=sys.stderr)
    record = files.read_json(folder / "run.json")
    with claimed(folder), _heard() as received:
        files.write_json(folder / "run.json", record | {"status": "running", "cause": None})
        waiting = [i for i, one in enumerate(folders(folder)) if _status(one) != "done"]
        running: dict[int, subprocess.Popen[bytes]] = {}
        failed: list[str] = []
        ended = False
        while (waiting and not (failed or received)) or running:
            while waiting and len(running) < jobs and not (failed or received):
                i = waiting.pop(0)
                print(f"boonta: member {i} of {len(record['members'])}: {record['members'][i]}", file=sys.stderr)
                running[i] = _started(folder / FOLDER / str(i), quiet or jobs > 1)
            for i, process in list(running.items()):
                if process.poll() is not None:
                    del running[i]
                    if process.returncode and not received:
                        failed.append(f"member {i} ({record['members'][i]}) ended with code {process.returncode}")
            for process in running.values() if (failed or received) and not ended else ():
                process.terminate()  # once: a second signal would not let it save
            ended = bool(failed or received)
            time.sleep(LOOK)
        cause, status = None, "done"
        if received:
            cause, status = f"{signal.Signals(received[0]).name}; saved, go on with: {_again(folder)}", "interrupted"
        if failed:
            cause, status = f"{'; '.join(failed)}; go on with: {_again(folder)}", "failed"
        summary = _summary(folder, record["members"]) if status == "done" else None
        end = {"status": status, "cause": cause, "finished": _now()} | ({"result": summary} if summary else {})
        files.write_json(folder / "run.json", record | end)
    if failed:
        raise Failed(cause)
    if received:
        raise Stopped(received[0], str(cause))
    assert summary
    return summary | {"out": str(folder), "status": "done"}


def _lay_out(folder: Path, config: Config, record: dict[str, Any]) -> None:
    text = configuration.write(config)
    folder.mkdir(parents=True, exist_ok=True)
    trust.seal(folder, text, config.tables())
    files.write_text(folder / "config.toml", text)
    files.write_json(folder / "run.json", record)


def folders(folder: Path) -> list[Path]:
    """Of the members, in their order."""
    found = [one for one in (folder / FOLDER).iterdir() if one.name.isdecimal() and not one.is_symlink()]
    return sorted(found, key=lambda one: int(one.name))


def _status(folder: Path) -> str:
    return str(files.read_json(folder / "run.json").get("status"))


def _started(folder: Path, quiet: bool) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-P", "-m", "boonta", "train", "--resume", str(folder), *["--json"] * quiet]
    words += ["--parent", str(os.getpid())]
    # Several share an accelerator, so none takes all of its memory. Signals to all come by way of this process.
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment, start_new_session=True)


@contextmanager
def _heard() -> Iterator[list[int]]:
    """Signals that ask for the end, in the order in which they come."""
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in ENDING}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _crowded(jobs: int) -> str:
    """What is to be said where so many processes may not find room."""
    memory = machine.machine()["memory"]
    if jobs == 1 or not memory or jobs * MEMORY <= memory:
        return ""
    return (
        f"--jobs {jobs}: {jobs} processes of about {MEMORY / 1e9:.1f} GB each are {jobs * MEMORY / 1e9:.1f} GB, and "
        f"this machine has {memory / 1e9:.1f} GB"
    )


def _summary(folder: Path, names: list[str]) -> dict[str, Any]:
    """What all of them came to."""
    results = [files.read_json(one / "run.json")["result"] for one in folders(folder)]
    means = [one["eval_return_mean"] for one in results]
    whole = [mean for mean in means if mean is not None]
    deviations = [one["eval_return_std"] for one in results if one["eval_return_std"] is not None]
    told = [{"name": name} | {key: one[key] for key in STATISTICS} for name, one in zip(names, results, strict=True)]
    summed = {key: sum(one[key] for one in results) for key in ("env_steps", "seconds", "compile_seconds")}
    return {
        "eval_return_mean": float(np.mean(whole)) if whole else None,
        "eval_return_std": float(np.mean(deviations)) if deviations else None,
        "eval_episodes": sum(one["eval_episodes"] for one in results),
        "eval_cut_short": sum(one["eval_cut_short"] for one in results),
        "eval_return_std_over_members": float(np.std(means)) if len(whole) == len(means) else None,
        **{key: round(value, 3) for key, value in summed.items()},
        "steps_per_second": round(summed["env_steps"] / max(summed["seconds"], 1e-9), 1),
        "wall_seconds": round(age(), 3),
        "updates": results[0]["updates"],
        "members": told,
    }


def _again(folder: Path) -> str:
    return f"boonta train --resume {folder}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
