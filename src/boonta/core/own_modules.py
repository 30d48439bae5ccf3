"""Modules of the user's own, which agents and environments may be; no others come from the current folder."""

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

SAFE_PATH = "PYTHONSAFEPATH"  # of the environment: Python does not look for modules in the current folder
OURS = "boonta"  # its value where it was set here, for one process
_counting, _inside = threading.Lock(), 0


def own_module(name: str) -> ModuleType:
    """The module of this name; the current folder is put last on the path of imports if it is not installed.

    Raises:
        ImportError: as an import does.
    """
    here, top = os.getcwd(), name.partition(".")[0]
    found = importlib.util.find_spec(top)
    wanted = [one for one in (Path(here, f"{top}.py"), Path(here, top, "__init__.py")) if one.is_file()]
    if (found is None or found.origin is None) and here not in sys.path:  # without an origin it is a mere folder
        sys.path.append(here)
    elif found and found.origin and wanted and Path(found.origin).resolve() not in [one.resolve() for one in wanted]:
        print(
            f"boonta: WARNING: module {top} is {found.origin}, not that of the current folder, which comes last; "
            "rename yours, or name its folder in PYTHONPATH",
            file=sys.stderr,
        )
    return importlib.import_module(name)


def without_its_factory(name: str) -> str:
    """What to say where a module of the current folder is named without what it defines, or nothing."""
    if not name.isidentifier() or not any(Path(one).is_file() for one in (f"{name}.py", f"{name}/__init__.py")):
        return ""
    return f"{name!r} is a module of the current folder: name what it defines too, as {name}:FACTORY"


@contextmanager
def no_modules_from_here() -> Iterator[None]:
    """Processes that start meanwhile do not look for modules in the current folder before they are told to."""
    global _inside
    with _counting:  # threads start processes side by side
        _inside += 1
        os.environ.setdefault(SAFE_PATH, OURS)
    try:
        yield
    finally:
        with _counting:
            _inside -= 1
            if not _inside:
                started()


def started() -> None:
    """Of such a process, which looks where it likes from now on, as does what it starts."""
    if os.environ.get(SAFE_PATH) == OURS:
        del os.environ[SAFE_PATH]
