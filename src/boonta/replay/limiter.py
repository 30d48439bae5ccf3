"""How often what is in replay is drawn: inserting and sampling wait for one another, within a band of error."""

import threading
import time
from collections.abc import Callable


class Stalled(TimeoutError):
    """One side waited too long for the other; the message says which, and what was counted."""


class Limiter:
    """Keeps samples / inserts near a ratio, counted from when replay held its minimum.

    With d = ratio (inserted - minimum) - sampled, inserting waits while d would rise above the band and sampling while
    it would fall below minus the band, so never both: the band holds at least half of what one of each moves.

    Args:
        ratio: samples per insert.
        minimum: windows in replay before any is drawn.
        inserting: windows that are inserted at a time, at most.
        sampling: windows that are drawn at a time.
        band: of the error, in samples; 0 for the least that cannot deadlock.
        timeout: seconds that either side waits.

    Raises:
        ValueError: a band that could make both sides wait for ever.
    """

    def __init__(
        self, ratio: float, minimum: int, inserting: int, sampling: int, band: float = 0.0, timeout: float = 120.0
    ) -> None:
        least = (ratio * inserting + sampling) / 2
        if band and band < least:
            raise ValueError(
                f"the limiter's band must be at least {least:g} (half of {inserting} inserted x {ratio:g} + {sampling} "
                f"sampled at a time), got {band:g}: else both sides could wait for ever"
            )
        self.ratio, self.minimum, self.band, self.timeout = ratio, minimum, band or least, timeout
        self.inserted = self.sampled = 0
        self.waiting = ""  # who waits now
        self._stopped = False
        self._changed = threading.Condition()

    def may_insert(self, count: int) -> bool:
        """Wait until so many windows may be inserted; False where all is over.

        Raises:
            Stalled: nobody sampled for too long.
        """
        return self._wait("inserting", lambda: self._ahead(count) <= self.band)

    def inserts(self, count: int) -> None:
        """Count windows that were inserted, and can be drawn now."""
        with self._changed:
            self.inserted += count
            self._changed.notify_all()

    def sample(self, count: int) -> bool:
        """Wait until so many windows may be drawn, and count them; False where all is over.

        Raises:
            Stalled: nobody inserted for too long.
        """
        enough = lambda: self.inserted >= self.minimum and self._ahead(0) - count >= -self.band  # noqa: E731
        return self._wait("sampling", enough, count)

    def stop(self) -> None:
        """Let everybody go."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _ahead(self, count: int) -> float:
        """How many samples the inserts, and so many more, are ahead."""
        return self.ratio * max(self.inserted + count - self.minimum, 0) - self.sampled

    def _wait(self, who: str, may: Callable[[], bool], sampled: int = 0) -> bool:
        end = time.monotonic() + self.timeout
        with self._changed:
            while not self._stopped and not may():
                self.waiting = who
                if not self._changed.wait(max(end - time.monotonic(), 0.0)) and time.monotonic() >= end:
                    raise Stalled(
                        f"{who} waited {self.timeout:g} s for the other side: {self.inserted} windows inserted "
                        f"(minimum {self.minimum}), {self.sampled} sampled, {self.ratio:g} samples per insert"
                    )
            if self.waiting == who:
                self.waiting = ""
            self.sampled += 0 if self._stopped else sampled
            self._changed.notify_all()
            return not self._stopped
