"""Waiting for what is outside of a run: with a deadline, a word while it lasts, and an ear for signals."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LOOK = 0.1  # seconds between moments in which a signal is heard
SOON = 5.0  # seconds after which it is told what is waited for


class Late(OSError):
    """What was waited for has not come; the message says what."""


def patiently(call: Callable[[], Any], what: str, seconds: float) -> Any:
    """What a call gives that may block where no signal is heard.

    Args:
        call: made in a thread beside; left behind where it comes too late.
        what: is waited for, in words.
        seconds: that it may take.

    Raises:
        Late: it has not come back in time. What it raises is raised.
    """
    answer: list[tuple[Any, BaseException | None]] = []

    def make() -> None:
        try:
            answer.append((call(), None))
        except BaseException as error:
            answer.append((None, error))

    thread, since, told = threading.Thread(target=make, name=what, daemon=True), time.monotonic(), False
    thread.start()
    while thread.is_alive():
        thread.join(LOOK)
        waited = time.monotonic() - since
        if not told and waited > SOON:
            told = True
            print(f"boonta: waiting for {what}, for up to {seconds:g} s", file=sys.stderr, flush=True)
        if waited > seconds and thread.is_alive():
            raise Late(f"{what} did not answer in {seconds:g} s")
    found, error = answer[0]
    if error:
        raise error
    return found
