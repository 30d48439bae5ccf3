"""The command line in a process of its own."""

import subprocess
import sys


def begun(arguments):
    """Start it with these words, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "boonta", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
