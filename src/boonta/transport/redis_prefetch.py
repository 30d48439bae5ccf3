"""The thread that reads: it is told of changes, or looks, and shows nothing before it has what belongs to it."""

import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from boonta.core.exchange import Entries, Layout
from boonta.transport import redis_server
from boonta.transport.redis_link import FIELD, Link

LOOK = 0.05  # seconds between looks that nobody asked for: a publication may be lost
SHORTEST = 5e-4  # seconds between looks
FETCHED = 1024  # entries of a log that are fetched ahead
PIECE = 1 << 20  # bytes of a log that are read or written at a time, which the server holds twice for that while


class Seen(NamedTuple):
    """All numbers, as they were together."""

    totals: dict[str, int]
    lengths: dict[str, int]
    numbers: dict[str, int]
    versions: dict[str, int]

    @staticmethod
    def of(layout: Layout, found: list[int]) -> "Seen":
        """From the numbers that were read; `fields` has their order."""
        totals, rest = len(layout.totals), len(layout.totals) + len(layout.logs)
        return Seen(
            dict(zip(layout.totals, found[:totals], strict=True)),
            dict(zip(layout.logs, found[totals:rest], strict=True)),
            dict(zip(layout.values, found[rest::2], strict=True)),
            dict(zip(layout.values, found[rest + 1 :: 2], strict=True)),
        )

    @staticmethod
    def fields(layout: Layout) -> list[str]:
        """What the numbers are called."""
        found = [f"total/{name}" for name in layout.totals] + [f"length/{name}" for name in layout.logs]
        return found + [f"{what}/{name}" for name in layout.values for what in ("number", "version")]


class _Feed:
    """Entries of a log that were fetched before they were asked for."""

    def __init__(self, begin: int) -> None:
        self.begin = self.following = begin
        self._entries: deque[tuple[int, bytes]] = deque()

    @property
    def room(self) -> int:
        return FETCHED - len(self._entries)

    def fill(self, entries: list[tuple[int, bytes]]) -> None:
        self._entries.extend(entries)
        if entries:
            self.following = entries[-1][0] + 1

    def take(self, most: int) -> tuple[list[bytes], int]:
        """At most so many entries, and how many before them were lost."""
        before, taken = self.begin, []
        while self._entries and len(taken) < most:
            number, data = self._entries.popleft()
            taken.append(data)
            self.begin = number + 1
        return taken, self.begin - before - len(taken)


class Prefetch:
    """What a process reads.

    Args:
        link: Link.
        layout: Layout.
    """

    def __init__(self, link: Link, layout: Layout) -> None:
        self.link, self.layout = link, layout
        self.seen = Seen({}, {}, {}, {})
        self._fields = Seen.fields(layout)
        self._feeds: dict[str, _Feed] = {}
        self._ended: dict[str, int] = {}  # where reading of a log that has no feed yet ended
        self._asked: dict[str, int] = {}  # how often a value was
        self._blobs: dict[str, tuple[int, np.ndarray]] = {}  # number and data of fetched values
        self._news: Any = None

    def read(self, log: str, begin: int, most: int) -> Entries:
        """See `Exchange`; from what is here, where it was read in order before."""
        with self.link.changed:
            feed, taken, lost = self._feeds.get(log), [], 0
            if feed and feed.begin == begin:
                taken, lost = feed.take(most)
                begin, most = feed.begin, most - len(taken)
                if not most or begin >= self.seen.lengths[log]:
                    return Entries(self._array(log, taken), begin, lost)
        found, following, each = [], begin, at_a_time(self.layout, log)
        while most > len(found):
            count = min(each, most - len(found))
            part, following = self.link.called(lambda: self._range(log, following, count))  # noqa: B023
            found += part
            if len(part) < count:
                break
        with self.link.changed:
            if feed or self._ended.get(log) == begin:
                self._feeds[log] = _Feed(following)
            self._ended[log] = following
        return Entries(self._array(log, taken + found), following, lost + following - begin - len(found))

    def newest(self, value: str, after: int) -> tuple[int, np.ndarray] | None:
        """See `Exchange`; what was asked for twice is fetched before it is asked for again."""
        with self.link.changed:
            number, version = self.seen.numbers[value], self.seen.versions[value]
            if not number or version <= after:
                return None
            self._asked[value] = self._asked.get(value, 0) + 1
            there = self._blobs.get(value)
            if there and there[0] == number:
                return version, there[1]
        return self.link.called(lambda: self._fetch(value))

    def receive(self) -> None:
        """What the thread does, again and again."""
        try:
            if self._news is None:
                self._news = self.link.server.pubsub(ignore_subscribe_messages=True)
                self._news.subscribe(self.link.numbers)
            self._news.get_message(timeout=LOOK)
            time.sleep(SHORTEST)
            while self._news.get_message(timeout=0.0):
                pass
        except redis_server.errors():
            self.close()
            raise
        self.look()

    def look(self) -> None:
        """See all numbers as they are together, with what belongs to them."""
        server, changed = self.link.server, self.link.changed
        seen = Seen.of(self.layout, [int(x or 0) for x in server.hmget(self.link.numbers, self._fields)])
        with changed:
            feeds = [
                (log, feed.following, min(feed.room, at_a_time(self.layout, log))) for log, feed in self._feeds.items()
                if feed.room and feed.following < seen.lengths[log]
            ]  # fmt: skip
            values = [
                value for value, times in self._asked.items()
                if times > 1 and seen.numbers[value] and self._blobs.get(value, (0,))[0] != seen.numbers[value]
            ]  # fmt: skip
        found: list[Any] = []
        if feeds or values:
            with server.pipeline(transaction=False) as pipe:
                for log, following, room in feeds:
                    pipe.xrange(self.link.key(log), f"{following + 1}-0", "+", room)
                for value in values:
                    pipe.get(self.link.blob(value, seen.numbers[value]))
                found = pipe.execute()
        with changed:
            for (log, following, _), entries in zip(feeds, found[: len(feeds)], strict=True):
                feed = self._feeds[log]
                if feed.following == following:
                    feed.fill([_entry(one) for one in entries])
            for value, blob in zip(values, found[len(feeds) :], strict=True):
                if blob is not None:  # else there is a newer one
                    self._blobs[value] = seen.numbers[value], np.frombuffer(blob, np.uint8)
            self.seen = seen
            changed.notify_all()

    def close(self) -> None:
        """No longer be told of changes."""
        if self._news:
            self._news.close()
        self._news = None

    def _range(self, log: str, begin: int, most: int) -> tuple[list[bytes], int]:
        """Entries from one on, and the number of that after them."""
        with self.link.server.pipeline() as pipe:
            pipe.xrange(self.link.key(log), f"{begin + 1}-0", "+", most)
            pipe.hget(self.link.numbers, f"length/{log}")
            entries, length = pipe.execute()
        found = [_entry(one) for one in entries]
        following = found[-1][0] + 1 if found else max(begin, int(length or 0))
        return [data for _, data in found], following

    def _fetch(self, value: str) -> tuple[int, np.ndarray] | None:
        until = time.monotonic() + redis_server.ANSWER
        while time.monotonic() < until:  # a newer state may come in between; none at all, until it is written again
            number, version = self.link.server.hmget(self.link.numbers, f"number/{value}", f"version/{value}")
            if number is None:
                return None
            blob = self.link.server.get(self.link.blob(value, int(number)))
            if blob is not None:
                return int(version), np.frombuffer(blob, np.uint8)
            time.sleep(SHORTEST)
        return None

    def _array(self, log: str, entries: list[bytes]) -> np.ndarray:
        return np.frombuffer(b"".join(entries), np.uint8).reshape(-1, self.layout.logs[log][0])


def at_a_time(layout: Layout, log: str) -> int:
    """Entries of a log that are read or written together."""
    return max(PIECE // max(layout.logs[log][0], 1), 1)


def _entry(one: Any) -> tuple[int, bytes]:
    """Number and data of what a stream holds."""
    name, fields = one
    return int(name.split(b"-")[0]) - 1, fields[FIELD]
