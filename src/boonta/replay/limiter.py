"""How often what is in replay is drawn: inserting and sampling wait for one another, within a band of error."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

CHECK = 1.0  # seconds between looks at the clock


class Stalled(TimeoutError):
    """Sampling waited too long; the message says what was counted."""


class Limiter:
    """Keeps samples / inserts near a ratio, counted from when replay held its minimum.

    With d = ratio (inserted - minimum) - sampled, inserting waits while d would rise above the band and sampling while
    it would fall below minus the band, so never both: the band holds at least half of what one of each moves.
    Inserting never waits before the minimum is there.

    Args:
        ratio: samples per insert.
        minimum: windows in replay before any is drawn.
        inserting: windows that are inserted at a time, at most.
        sampling: windows that are drawn at a time.
        band: of the error, in samples; 0 for the least that cannot deadlock.
        timeout: seconds without an insert that sampling waits. Inserting waits as long as nobody samples: a learner may
            be busy with something else.

    Raises:
        ValueError: a ratio of 0, or a band that could make both sides wait for ever.
    """

    def __init__(
        self, ratio: float, minimum: int, inserting: int, sampling: int, band: float = 0.0, timeout: float = 120.0
    ) -> None:
        if ratio <= 0.0:
            raise ValueError(f"samples per insert must be above 0, got {ratio:g}")
        exact = Fraction(ratio).limit_denominator(1_000_000)  # rounding must not make both sides wait
        least = (exact * inserting + sampling) / 2
        if band and band < float(least) * (1 - 1e-9):
            raise ValueError(
                f"the limiter's band must be at least {float(least):g} (half of {inserting} inserted x {ratio:g} + "
                f"{sampling} sampled at a time), got {band:g}: else both sides could wait for ever"
            )
        self.ratio, self.minimum, self.timeout = ratio, minimum, timeout
        self._exact, self.band = exact, max(Fraction(band), least)
        self.inserted = self.sampled = 0
        self._moved = time.monotonic()  # when something was inserted
        self.waiting = ""  # who waits now
        self._stopped = self._still = False
        self._changed = threading.Condition()

    def may_insert(self, count: int) -> bool:
        """Wait until so many windows may be inserted; False where all is over."""
        with self._changed:
            may = lambda: self.inserted < self.minimum or self._ahead(count) <= self.band  # noqa: E731
            while not self._stopped and not may():
                self.waiting = "inserting"
                self._changed.wait(CHECK)
            self._go_on("inserting")
            return not self._stopped

    def inserts(self, count: int) -> None:
        """Count windows that were inserted, and can be drawn now, or never, as they teach nothing."""
        with self._changed:
            self.inserted += count
            self._moved = time.monotonic()
            self._changed.notify_all()

    def sample(self, count: int, drawable: Callable[[], bool] = lambda: True) -> bool:
        """Wait until so many windows may be drawn, and count them; False where all is over.

        Args:
            count: windows.
            drawable: () -> whether there is any window that may be drawn.

        Raises:
            Stalled: nobody inserted for too long.
        """
        with self._changed:
            since = time.monotonic()
            enough = lambda: self.inserted >= self.minimum and self._ahead(0) - count >= -self.band  # noqa: E731
            while not self._stopped and not (enough() and drawable()):
                self.waiting = "sampling"
                if not self._still and time.monotonic() > max(since, self._moved) + self.timeout:
                    none = "" if drawable() else ", none of which can be drawn"
                    raise Stalled(
                        f"sampling waited {self.timeout:g} s for inserts: {self.inserted} windows inserted (minimum "
                        f"{self.minimum}){none}, {self.sampled} sampled, {self.ratio:g} samples per insert"
                    )
                self._changed.wait(min(CHECK, self.timeout))
            self._go_on("sampling")
            self.sampled += 0 if self._stopped else count
            self._changed.notify_all()
            return not self._stopped

    @contextmanager
    def still(self) -> Iterator[None]:
        """While a replay is saved nobody inserts, and that is no stall."""
        self._still = True
        try:
            yield
        finally:
            self._still = False
            self.inserts(0)

    def stop(self) -> None:
        """Let everybody go."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _ahead(self, count: int) -> Fraction:
        """How many samples the inserts, and so many more, are ahead."""
        return self._exact * max(self.inserted + count - self.minimum, 0) - self.sampled

    def _go_on(self, who: str) -> None:
        if self.waiting == who:
            self.waiting = ""
