"""The processes that a library starts for a run, and that end with it, however it ends."""

import os
import secrets
import subprocess
import sys

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


def mark() -> str:
    """A mark on all processes that this one starts from now on."""
    os.environ[MARK] = secrets.token_hex(8)
    return os.environ[MARK]


class Reaper:
    """A process that ends those with a mark a few seconds after this one has died; where `/proc` shows them."""

    def __init__(self, mark: str) -> None:
        words = [sys.executable, "-I", "-S", "-c", _REAP, f"{MARK}={mark}"]
        own = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, env=own, start_new_session=True)

    def release(self) -> None:
        """Nothing is left to be ended."""
        assert self._process.stdin
        self._process.stdin.write(b".")
        self._process.stdin.close()
        self._process.wait(10.0)
        os.environ.pop(MARK, None)


def reaper(mark: str) -> Reaper | None:
    """One for this process, where that can be."""
    return Reaper(mark) if os.path.isdir("/proc/self") else None
