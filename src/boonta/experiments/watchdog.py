"""Ends a run whose update hangs, from a thread beside it: whoever waits for the update can neither look nor speak."""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn, Self

from boonta.core.watch import Watch
from boonta.experiments.agreement import PATIENCE

LOOK = 0.2  # seconds between looks
LEAST, TIMES = 600.0, 20.0  # by default an update may take so many seconds, or so many times the slowest so far
GRACE = 4.0  # seconds that an update has once the run is asked to end, or twice the slowest lately
HEARD = 1.0  # seconds in which a run that is not stuck hears a second signal


class Watchdog:
    """Looks after the updates of a run, as a context manager.

    Args:
        watch: Watch.
        timeout: seconds that an update may take; 0 for no limit, None for the larger of 600 and 20 times the slowest.
        last: what there is to go on from and what is lost, in words.
        ended: takes the status and the cause of a run that was ended here.

    Attributes:
        wake: a descriptor, to which the number of every signal is to be written.
    """

    def __init__(
        self, watch: Watch, timeout: float | None, last: Callable[[], str], ended: Callable[[str, str], None]
    ) -> None:
        self._watch, self._timeout, self._last, self._ended = watch, timeout, last, ended
        self.wake = -1
        self._signals: list[tuple[int, float]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._wake.send(b"\0")
        self._thread.join()
        self._heard.close()
        self._wake.close()

    def start(self) -> None:
        """Look until the process ends, or what this is a context manager of."""
        self._heard, self._wake = socket.socketpair()
        for one in (self._heard, self._wake):
            one.setblocking(False)
        self.wake = self._wake.fileno()
        self._thread.start()

    def _look(self) -> None:
        while not self._closing.is_set():
            if select.select([self._heard], [], [], LOOK)[0]:
                self._signals += [(number, time.monotonic()) for number in self._heard.recv(64) if number]
            elapsed = self._watch.elapsed()
            if elapsed is not None and elapsed > self._limit():
                self._hangs(elapsed)
            if self._signals:
                self._asked(elapsed)

    def _limit(self) -> float:
        if self._timeout is None:
            return max(LEAST, TIMES * self._watch.slowest)
        return self._timeout or float("inf")

    def _hangs(self, elapsed: float) -> NoReturn:
        with suppress(OSError):  # nobody reads any more
            sys.stderr.flush()
            os.write(2, b"boonta: the stacks of all threads:\n")
            faulthandler.dump_traceback(2, all_threads=True)
        took = f"an update has taken {elapsed:.0f} s, and may take {self._limit():.0f} s (run.update_timeout)"
        self._end(1, "failed", f"{took}; {self._last()}")

    def _asked(self, elapsed: float | None) -> None:
        number, first = self._signals[0]
        name, now = signal.Signals(number).name, time.monotonic()
        if elapsed is not None and now > first + GRACE and elapsed > max(GRACE, 2 * self._watch.lately()):
            hung = f"{name}, while an update has hung for {elapsed:.0f} s: nothing was saved"
            self._end(128 + number, "interrupted", f"{hung}; {self._last()}")
        again = [at for _, at in self._signals if at > first + PATIENCE]
        if again and now > again[0] + HEARD:
            self._end(128 + number, "interrupted", f"a second {name} did not wait; {self._last()}")

    def _end(self, code: int, status: str, cause: str) -> NoReturn:
        try:
            self._ended(status, cause)
            os.write(2, f"boonta: {cause}\n".encode())
            sys.stdout.flush()
        finally:  # also where nobody reads any more, or the disk is full
            os._exit(code)


def watch_process(watch: Watch, timeout: float | None, who: str) -> None:
    """Look after a process that makes updates for the run, until it ends; the run will see that it has."""
    Watchdog(watch, timeout, lambda: f"the process of {who} ends", lambda status, cause: None).start()
