"""How environments fail in tests. Imported by worker processes, so it imports little."""

import os
import signal
import time


def fail(fault):
    """Raise, exit, crash or hang, by name; nothing for another name."""
    if fault == "raises":
        raise RuntimeError("the sky fell")
    if fault == "exits":
        os._exit(7)
    if fault == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hangs":
        time.sleep(3600)
