"""MuJoCo's warnings: told once each, not for every environment."""

import functools
import sys
from contextlib import suppress


def quieten() -> None:
    """From now on MuJoCo, if it is there, tells a warning once in this process, and writes none to a file."""
    with suppress(ImportError):
        import mujoco

        mujoco.set_mju_user_warning(_tell)  # type: ignore[attr-defined]


@functools.cache
def _tell(text: str) -> None:
    print(f"MuJoCo: {text.strip()}", file=sys.stderr)
