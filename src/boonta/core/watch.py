"""Since when an update is being made, for whoever looks after updates that never end."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATEST = 32  # updates that tell how long one usually takes


class Watch:
    """Updates that were begun and have not ended. They end in the order in which they began; threads may share it.

    Args:
        clock: seconds that never go back.

    Attributes:
        slowest: seconds of the slowest update so far, compiling included.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.slowest = 0.0
        self._clock, self._lock = clock, threading.Lock()
        self._begun: deque[float] = deque()
        self._latest: deque[float] = deque(maxlen=LATEST)
        self._ended = 0.0

    def begin(self) -> None:
        """An update begins, or waits for the one before."""
        with self._lock:
            self._begun.append(self._clock())

    def end(self) -> None:
        """The oldest of them has ended."""
        with self._lock:
            self._latest.append(self._elapsed())
            self.slowest = max(self.slowest, self._latest[-1])
            self._begun.popleft()
            self._ended = self._clock()

    @contextmanager
    def update(self) -> Iterator[None]:
        """One that the body makes."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def elapsed(self) -> float | None:
        """Seconds for which the oldest update has been made; None where there is none."""
        with self._lock:
            return self._elapsed() if self._begun else None

    def lately(self) -> float:
        """Seconds of the slowest of the latest updates: the first, which compiles, tells little of the others."""
        with self._lock:
            return max(self._latest, default=0.0)

    def _elapsed(self) -> float:
        return self._clock() - max(self._begun[0], self._ended)
