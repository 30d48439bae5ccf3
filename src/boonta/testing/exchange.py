"""What every exchange must do, as tests that the author of one inherits."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from boonta.core.exchange import Exchange, Layout

LAYOUT = Layout({"log": (64, 32), "other": (8, 4)}, {"value": 1 << 16}, ("a", "b"), "a test")


class ExchangeContract:
    """Inherit it in a test module, as `class TestMine(ExchangeContract)`, and say how one is made and joined."""

    def make(self, layout: Layout) -> Exchange:
        """A new exchange."""
        raise NotImplementedError

    def joiner(self, exchange: Exchange) -> Callable[[], Exchange]:
        """What a process that was forked from this one calls to take part in it."""
        raise NotImplementedError

    def test_a_log_is_read_in_order_from_anywhere(self):
        exchange = self.make(LAYOUT)
        for i in range(10):
            exchange.append("log", entry(i))
        assert exchange.length("log") == 10
        found = exchange.read("log", 0, 4)
        assert (numbers(found.data), found.following, found.lost) == ([0, 1, 2, 3], 4, 0)
        found = exchange.read("log", 4, 100)
        assert (numbers(found.data), found.following, found.lost) == ([4, 5, 6, 7, 8, 9], 10, 0)
        found = exchange.read("log", 10, 100)
        assert (len(found.data), found.following, found.lost) == (0, 10, 0)
        exchange.close()

    def test_who_reads_too_late_is_told_what_was_lost(self):
        exchange = self.make(LAYOUT)
        for i in range(100):
            exchange.append("log", entry(i))
        found = exchange.read("log", 5, 100)
        assert (numbers(found.data), found.following, found.lost) == (list(range(68, 100)), 100, 63)
        exchange.close()

    def test_a_log_can_be_put_back(self):
        exchange = self.make(LAYOUT)
        exchange.restore("log", 1000, np.stack([entry(i) for i in range(5)]))
        assert exchange.length("log") == 1005
        exchange.append("log", entry(5))
        assert numbers(exchange.read("log", 1000, 100).data) == [0, 1, 2, 3, 4, 5]
        exchange.close()

    def test_of_a_value_there_is_the_newest(self):
        exchange = self.make(LAYOUT)
        assert exchange.newest("value", -1) is None
        for version in (0, 1, 2, 7):
            exchange.publish("value", version, blob(version))
        found = exchange.newest("value", -1)
        assert found is not None and found[0] == 7 and np.array_equal(found[1], blob(7))
        assert exchange.newest("value", 6) is not None
        assert exchange.newest("value", 7) is None
        exchange.close()

    def test_totals_are_what_was_put(self):
        exchange = self.make(LAYOUT)
        assert exchange.totals() == {"a": 0, "b": 0}
        exchange.put("b", 1 << 40)
        assert exchange.totals() == {"a": 0, "b": 1 << 40}
        exchange.close()

    def test_readers_never_see_half_of_anything(self):
        """One process writes as fast as it can; what another reads is whole, and in order."""
        exchange = self.make(LAYOUT)
        writer = started(self.joiner(exchange), write)
        at, version, read = 0, -1, 0
        begin = time.monotonic()
        # A log keeps 32 of the entries that are heard of together, and a busy machine hears only a few times a second.
        while (passed := time.monotonic() - begin) < 2.0 or (read <= 100 and passed < 30.0):
            found = exchange.read("log", at, 16)
            for data in found.data:
                assert len(set(data.view("<i8"))) == 1, "a mixture of two entries"
            assert numbers(found.data) == sorted(set(numbers(found.data)))
            at, read = found.following, read + len(found.data)
            if there := exchange.newest("value", version):
                assert there[0] > version and len(np.unique(there[1].view("<i8"))) == 1, "a mixture of two values"
                version = there[0]
        ended = writer.exitcode
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(10)
        assert read > 100 and version > 10, f"{read} entries, version {version}, the writer ended with {ended}"
        exchange.close()

    def test_a_writer_that_is_killed_at_any_moment_leaves_nothing_broken(self):
        exchange = self.make(LAYOUT)
        for _ in range(8):
            writer = started(self.joiner(exchange), write)
            before, until = exchange.length("log"), time.monotonic() + 10
            while exchange.length("log") < before + 50 and time.monotonic() < until:
                time.sleep(0.001)
            os.kill(writer.pid, signal.SIGKILL)
            writer.join(10)
            until = time.monotonic() + 10
            while True:  # a count may be older than what is read; nobody writes any more
                length = exchange.length("log")
                found = exchange.read("log", length - 16, 100)
                if found.following <= length or time.monotonic() > until:
                    break
                time.sleep(0.001)
            assert numbers(found.data) == list(range(length - 16, length)), "an entry that was counted is not there"
            assert exchange.newest("value", -1) is not None
        exchange.close()


def entry(i: int) -> np.ndarray:
    """64 bytes."""
    return np.full(8, i, "<i8").view(np.uint8)


def blob(version: int) -> np.ndarray:
    """64 KiB."""
    return np.full(1 << 13, version, "<i8").view(np.uint8)


def numbers(data: np.ndarray) -> list[int]:
    """Which entries these are."""
    return [int(one[:8].view("<i8")[0]) for one in data]


def write(exchange: Exchange) -> None:
    """For ever, from where it stands."""
    while True:
        number = exchange.length("log")
        exchange.append("log", entry(number))
        exchange.publish("value", number, blob(number))


def started(join: Callable[[], Exchange], work: Callable[[Exchange], None]) -> Any:
    """A process forked from this one that takes part."""
    process = multiprocessing.get_context("fork").Process(target=lambda: work(join()), daemon=True)
    process.start()
    return process
