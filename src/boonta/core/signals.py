"""Signals that a terminal, or a cluster, sends to all processes of a run, of which one alone knows what to do."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held() -> Iterator[None]:
    """Processes started in here do not hear these signals before they `hear`; until then the usual would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear() -> None:
    """Of a process started with signals held, once it has said what they are to do."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
