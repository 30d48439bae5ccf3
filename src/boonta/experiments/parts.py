"""Where the time of a command goes: its parts add up to the whole, from the start of the process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("starting", "compiling", "training", "evaluating", "saving", "other")
_IMPORTED = time.monotonic()


def age() -> float:
    """Seconds since this process started; where the system does not tell, since this module was imported."""
    try:
        # After the name, which may have any characters, in clock ticks since the machine started.
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic() - _IMPORTED


class Parts:
    """Seconds of each part; inside another, a part takes its time from that one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(NAMES, 0.0)
        self._inside: list[str] = []
        self._since = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What is done meanwhile belongs to this part."""
        self._turn()
        self._inside.append(name)
        try:
            yield
        finally:
            self._turn()
            self._inside.pop()

    def whole(self) -> dict[str, float]:
        """The parts until now; what is in none of them is `other`."""
        self._turn()
        rest = age() - sum(self.seconds.values())
        return {name: round(value + rest * (name == "other"), 3) for name, value in self.seconds.items()}

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._inside:
            self.seconds[self._inside[-1]] += now - self._since
        self._since = now
