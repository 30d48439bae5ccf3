"""Modules of the user's own, which agents and environments may be; no others come from the current folder."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

SAFE_PATH = "PYTHONSAFEPATH"  # of the environment: Python does not look for modules in the current folder
OURS = "boonta"  # its value where it was set here, for one process


def own_module(name: str) -> ModuleType:
    """The module of this name, installed or of the current folder, which comes last on the path of imports.

    Raises:
        ImportError: as an import does.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    top = name.partition(".")[0]
    wanted = [one for one in (Path(here, f"{top}.py"), Path(here, top, "__init__.py")) if one.is_file()]
    found = importlib.util.find_spec(top) if wanted else None
    if found and found.origin and Path(found.origin).resolve() not in [one.resolve() for one in wanted]:
        print(
            f"boonta: WARNING: module {top} is {found.origin}, not that of the current folder, which comes last; "
            "rename yours, or name its folder in PYTHONPATH",
            file=sys.stderr,
        )
    return importlib.import_module(name)


@contextmanager
def no_modules_from_here() -> Iterator[None]:
    """Processes that start meanwhile do not look for modules in the current folder before they are told to."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = before or OURS
    try:
        yield
    finally:
        if before is None:
            started()
        else:
            os.environ[SAFE_PATH] = before


def started() -> None:
    """Of such a process: what it starts is not its own affair."""
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
