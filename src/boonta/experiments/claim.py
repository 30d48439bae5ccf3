"""One process at a time writes to a run folder."""

import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from boonta.core.settings import Refused

NAME = ".lock"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep others from writing to this folder; however the process ends, it is free again.

    Raises:
        Refused: another process is writing to it, or files of it lie elsewhere.
    """
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink():
                raise Refused(f"{path} is a link, and a run writes to files of its own folder only; delete the link")
    with open(os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(in_use(folder)) from None
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def in_use(folder: Path) -> str | None:
    """Who is writing to a folder, in words; None if nobody is."""
    with suppress(OSError), (folder / NAME).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return f"{folder} is a run that is going on: process {file.read() or 'unknown'} writes to it"
    return None


def blank(folder: Path) -> bool:
    """Whether there is nothing in a folder, or only what a run leaves that ended before it began."""
    return all(
        path.name == NAME or (path.name == "checkpoints" and path.is_dir() and not any(path.iterdir()))
        for path in folder.iterdir()
    )


def fresh(folder: Path) -> Path:
    """A folder that was not there, of this name or with a number behind it."""
    for number in itertools.count(1):
        place = folder.with_name(f"{folder.name}-{number}") if number > 1 else folder
        with suppress(FileExistsError):
            place.mkdir(parents=True)
            return place
    raise AssertionError("not reached")
