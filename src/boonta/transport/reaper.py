"""Ends the processes that a library has started for a run, where the run itself was killed and could not."""

import os
import secrets
import subprocess
import sys
from contextlib import suppress

MARK = "BOONTA_PROCESS_OF"  # an environment variable, which all that is started later inherits

# Of a process of its own, without anything but Python: it waits for the end of the run, and ends what is left of it.
_REAP = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
if sys.stdin.buffer.read(1):
    sys.exit()
for delay in (2.0, 3.0):
    time.sleep(delay)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            marks = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
            if sys.argv[1].encode() in marks and int(pid) != os.getpid():
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
"""


class Reaper:
    """Looks after all that this process starts from now on, where `/proc` shows whose it is."""

    def __init__(self) -> None:
        mark, nowhere = secrets.token_hex(8), subprocess.DEVNULL
        self._process: subprocess.Popen[bytes] | None = None
        if os.path.isdir("/proc/self"):
            words = [sys.executable, "-I", "-S", "-c", _REAP, f"{MARK}={mark}"]
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
            os.environ[MARK] = mark

    def release(self) -> None:
        """Nothing is left to be ended."""
        if self._process is None:
            return
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write(b".")
            self._process.stdin.close()
        self._process.wait(10.0)
        os.environ.pop(MARK, None)
