"""Ends the processes that a library has started for a run, where the run itself was killed and could not."""

import os
import secrets
import subprocess
import sys
from contextlib import suppress

MARK = "BOONTA_PROCESS_OF"  # an environment variable, which all that is started later inherits

# Of a process of its own, without anything but Python: it waits for the end of the run, looks at once who belongs to it
# (some write over their variables, but are children of those who do not), and ends who is still there a little later.
_REAP = """
import os, signal, sys, time

def processes():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            after_name = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
            marked = sys.argv[1].encode() in open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
            found[int(pid)] = int(after_name[1]), after_name[19], marked
        except OSError:
            pass
    return found

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
if sys.stdin.buffer.read(1):
    sys.exit()
there = processes()
theirs = {pid for pid, (_, _, marked) in there.items() if marked}
while more := {pid for pid, (parent, _, _) in there.items() if parent in theirs} - theirs:
    theirs |= more
time.sleep(3.0)
for pid, (_, began, _) in processes().items():
    if pid in theirs and began == there[pid][1] and pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL)
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
