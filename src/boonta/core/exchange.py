"""What processes that never wait for one another pass on: logs, newest values and totals, each with one writer.

Whoever writes is never blocked by who reads: of a log the newest entries are kept, of a value the newest alone.
"""

import hashlib
from typing import NamedTuple, Protocol

import numpy as np

UNLIKE = (
    "this process and the run's do not agree on what they exchange; are their versions the same, their agents and "
    "environments?"
)


class Disconnected(Exception):
    """What carries everything no longer does, or not for us; the message says why."""


class Layout(NamedTuple):
    """What there is to write and read, known to all who take part.

    Attributes:
        logs: name -> (bytes of an entry, entries that are kept).
        values: name -> bytes.
        totals: names of numbers.
        about: what the bytes mean, in words that differ where the meaning does.
    """

    logs: dict[str, tuple[int, int]]
    values: dict[str, int]
    totals: tuple[str, ...]
    about: str = ""

    def fingerprint(self) -> bytes:
        """32 bytes; equal for those who understand each other."""
        parts = (sorted(self.logs.items()), sorted(self.values.items()), sorted(self.totals), self.about)
        return hashlib.sha256(repr(parts).encode()).digest()


class Entries(NamedTuple):
    """What was read of a log.

    Attributes:
        data: uint8 [K, bytes of an entry], in order; not shared with the log.
        following: int, the number of the entry to read next.
        lost: entries that were overwritten before they could be read.
    """

    data: np.ndarray
    following: int
    lost: int


class Exchange(Protocol):
    """One process' door to the others; who no longer takes part is told so by `Disconnected`."""

    def append(self, log: str, entry: np.ndarray) -> None:
        """Add an entry, uint8 [bytes of one], in place of the oldest. One process at a time writes a log."""
        ...

    def read(self, log: str, begin: int, most: int) -> Entries:
        """At most so many entries, from number `begin` on."""
        ...

    def length(self, log: str) -> int:
        """Entries appended so far."""
        ...

    def restore(self, log: str, begin: int, data: np.ndarray) -> None:
        """Make a log what it was: entries uint8 [K, bytes of one], the first of which had this number."""
        ...

    def hand_over(self) -> None:
        """From now on others write what this process has written so far."""
        ...

    def publish(self, value: str, version: int, data: np.ndarray) -> None:
        """Put uint8 [bytes of it] in place of what was there. One process at a time writes a value."""
        ...

    def newest(self, value: str, after: int) -> tuple[int, np.ndarray] | None:
        """The version and a copy of the data; None where there is none of a version above `after`."""
        ...

    def put(self, total: str, number: int) -> None:
        """Set a number, int64, 0 at first. One process at a time writes it."""
        ...

    def totals(self) -> dict[str, int]:
        """All numbers as they are."""
        ...

    def pause(self, times: int) -> None:
        """Give others time to change something: a moment, longer where it is one of many in a row."""
        ...

    def close(self) -> None:
        """Leave."""
        ...
