"""`python -m boonta` is the command `boonta`."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]  # whatever lies in the current folder is not to be run
    from boonta.cli import run

    run()
