"""A folder that a process keeps for itself while it runs; where one was killed, the next to begin sweeps it away."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX, LOCK = "boonta-own-", ".lock"


class OwnFolder:
    """Beside the temporary files of this machine.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        new = Path(tempfile.mkdtemp(prefix="boonta-new-"))
        self._lock = (new / LOCK).open("w")
        with suppress(OSError):  # a file system without locks: it is never swept
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = new.rename(new.with_name(new.name.replace("boonta-new-", PREFIX)))  # seen only now, by who sweeps

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep() -> None:
    """Remove those whose processes are no more."""
    for one in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if one.stat().st_uid != os.getuid():
                continue
            with (one / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(one, ignore_errors=True)
