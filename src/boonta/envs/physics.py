"""MuJoCo's warnings: told once each, not for every environment."""

import functools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def quieten() -> None:
    """From now on MuJoCo, if it is there, tells a warning once in this process, and writes none to a file."""
    with suppress(ImportError):
        import mujoco

        mujoco.set_mju_user_warning(_tell)  # type: ignore[attr-defined]


@contextmanager
def undrawn() -> Iterator[None]:
    """What is imported in here does not warn of a display that is missing: drawing will, where it is asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def _tell(text: str) -> None:
    print(f"MuJoCo: {text.strip()}", file=sys.stderr)
