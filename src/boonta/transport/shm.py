"""An exchange in the memory of one machine, without a server and without a name.

The memory belongs to a file descriptor that a run's processes inherit, so nothing can be left of it: it is gone with
the last of them, however they end. Every entry has its number, written last, and in that order on any processor, so
that a reader never takes what a writer is at, or was at when it was killed; whoever writes next goes on where the last
one left off. Entries of logs, which are read once and small, have a checksum besides.
"""

import contextlib
import mmap
import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from boonta.core.exchange import UNLIKE, Entries, Layout
from boonta.core.settings import Refused

SHORTEST, SHORT = 1e-4, 1e-3  # seconds of a pause: short beside an update, and not all of a core for looking
LONGEST = 2e-2  # of one after many, which cost next to nothing: a fiftieth of SHORT longer each time
HEAD = 32  # bytes of the fingerprint
SLOTS = 3  # of a value: one is read, one is newest, one is written
MARK = 16  # bytes before each entry: its number (int64) and its checksum (uint32), 0 where there is none


class SharedMemory:
    """See `core.exchange.Exchange`.

    Args:
        layout: Layout.
        descriptor: of the memory that another process made; None to make it.

    Raises:
        Refused: there is not so much memory, or it was made for another layout.
    """

    def __init__(self, layout: Layout, descriptor: int | None = None) -> None:
        self.layout = layout
        at = HEAD
        self._totals_at, at = at, at + 8 * len(layout.totals)
        places = {}
        for name, (size, entries) in layout.logs.items():
            places[name], at = at, at + 8 + entries * _stride(size)
        for name, size in layout.values.items():
            places[f"value {name}"], at = at, at + 8 + SLOTS * _stride(8 + size)
        self.descriptor = _memory(at) if descriptor is None else descriptor
        if os.fstat(self.descriptor).st_size < at:
            raise Refused(UNLIKE)
        self._map = mmap.mmap(self.descriptor, at)
        memory = np.frombuffer(self._map, np.uint8)
        if descriptor is None:
            memory[:HEAD] = np.frombuffer(layout.fingerprint(), np.uint8)
        elif memory[:HEAD].tobytes() != layout.fingerprint():
            raise Refused(UNLIKE)
        self._totals = memory[self._totals_at : self._totals_at + 8 * len(layout.totals)].view(np.int64)
        self._names = {name: i for i, name in enumerate(layout.totals)}
        self._logs = {name: _Ring(memory, places[name], *shape) for name, shape in layout.logs.items()}
        self._values = {
            name: _Ring(memory, places[f"value {name}"], 8 + size, SLOTS, summed=False)
            for name, size in layout.values.items()
        }

    def append(self, log: str, entry: np.ndarray) -> None:
        self._logs[log].append(entry)

    def read(self, log: str, begin: int, most: int) -> Entries:
        return self._logs[log].read(begin, most)

    def length(self, log: str) -> int:
        return self._logs[log].length()

    def restore(self, log: str, begin: int, data: np.ndarray) -> None:
        self._logs[log].restore(begin, data)

    def hand_over(self) -> None:
        pass  # the memory does not mind who writes

    def publish(self, value: str, version: int, data: np.ndarray) -> None:
        self._values[value].append(np.concatenate([np.array([version], "<i8").view(np.uint8), data]))

    def newest(self, value: str, after: int) -> tuple[int, np.ndarray] | None:
        ring = self._values[value]
        while there := ring.length():
            if ring.peek(there - 1) <= after:
                return None
            found = ring.read(there - 1, 1)
            if len(found.data):
                data = found.data[0]
                return int(data[:8].view("<i8")[0]), data[8:]
        return None

    def put(self, total: str, number: int) -> None:
        self._totals[self._names[total]] = number

    def totals(self) -> dict[str, int]:
        return dict(zip(self.layout.totals, self._totals.tolist(), strict=True))

    def pause(self, times: int) -> None:
        soon = min(SHORTEST * 2.0 ** min(times, 30), SHORT)
        time.sleep(min(max(soon, times * SHORT / 50), LONGEST))

    def close(self) -> None:
        self._totals = np.zeros(0, np.int64)
        self._logs.clear()
        self._values.clear()
        with contextlib.suppress(BufferError):  # somebody still has a view; the memory goes with the process
            self._map.close()
        os.close(self.descriptor)


class _Ring:
    """Entries of one size, one after the other and round again."""

    def __init__(self, memory: np.ndarray, at: int, size: int, entries: int, summed: bool = True) -> None:
        self.size, self.entries = size, entries
        self._sum: Callable[[Any], int] = zlib.crc32 if summed else lambda data: 0
        self._length = memory[at : at + 8].view(np.int64)
        slots = memory[at + 8 : at + 8 + entries * _stride(size)].reshape(entries, -1)
        self._numbers = slots[:, :8].view(np.int64)[:, 0]  # 1 + the number of the entry, 0 while it is written
        self._sums = slots[:, 8:12].view(np.uint32)[:, 0]
        self._data = slots[:, MARK : MARK + size]

    def length(self) -> int:
        return int(self._length[0])

    def append(self, entry: np.ndarray) -> None:
        number = self.length()
        slot = number % self.entries
        self._numbers[slot] = 0
        _fence()
        self._data[slot] = entry
        self._sums[slot] = self._sum(entry)
        _fence()
        self._numbers[slot] = number + 1
        _fence()
        self._length[0] = number + 1

    def restore(self, begin: int, data: np.ndarray) -> None:
        self._length[0] = begin
        for entry in data:
            self.append(entry)

    def peek(self, number: int) -> int:
        """The first eight bytes of an entry as an integer, which may be gone meanwhile."""
        return int(self._data[number % self.entries, :8].view("<i8")[0])

    def read(self, begin: int, most: int) -> Entries:
        end = self.length()
        first = max(begin, end - self.entries)
        numbers = np.arange(first, min(end, first + most))
        slots = numbers % self.entries
        _fence()
        before = self._numbers[slots] == numbers + 1
        _fence()
        data, sums = self._data[slots], self._sums[slots]
        _fence()
        whole = before & (self._numbers[slots] == numbers + 1)
        for i in np.flatnonzero(whole):
            whole[i] = self._sum(data[i]) == sums[i]
        following = int(numbers[-1]) + 1 if len(numbers) else max(begin, first)
        lost = following - begin - int(whole.sum())
        return Entries(data[whole], following, lost)


_LOCK = threading.Lock()


def _fence() -> None:
    """Let no write, or read, of before be seen after one of later, also on processors that are free to reorder them.

    Nothing goes down past a lock's release, nor up past its acquisition, and these two are not exchanged.
    """
    with _LOCK:
        pass
    with _LOCK:
        pass


def _stride(size: int) -> int:
    return MARK + -(-size // 8) * 8


def _memory(size: int) -> int:
    """A descriptor of so many bytes of memory that has no name.

    Raises:
        Refused: there is not so much.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("boonta")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
        there = _available()
        if there is not None and size > there:
            raise OSError(f"{there / 1e9:.2f} GB are free")
    except OSError as error:
        os.close(descriptor)
        raise Refused(
            f"{size / 1e9:.2f} GB of shared memory are needed for agent.capacity and the parameters, but {error}"
        ) from error
    os.set_inheritable(descriptor, True)
    return descriptor


def _available() -> int | None:
    """Bytes of memory that this machine can still give; None where it does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
