"""The thread that writes: all that has gathered, in order, as one transaction; and that a process is there."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from boonta.core.exchange import UNLIKE, Disconnected, Layout
from boonta.core.settings import Refused
from boonta.transport import redis_server
from boonta.transport.redis_link import FIELD, Link

LEASE = 5.0  # seconds between words that a process is there
ALONE = 5  # of them without one of the driver's
HELD = 15_000  # milliseconds for which a role is somebody's without a word
NOBODY = b"999999999:nobody"  # has a role that was taken from somebody: the latest life of all
GATHERED = 1 << 26  # bytes of entries that may wait until they are there
BLOBS = 3  # of a value, for who is about to read an older one

# Whose a role is: his who has it, or whose life is a later one; and whether it was anybody's.
CLAIM = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[3]) return {held, 1} end
if held and tonumber(held:match('^%d+')) >= tonumber(ARGV[2]) then return {held, 1} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return {ARGV[1], held and 1 or 0}
"""
LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class Own(NamedTuple):
    """The newest of what a process wrote."""

    totals: dict[str, int]
    lengths: dict[str, int]
    values: dict[str, tuple[int, bytes]]


@dataclass
class _Batch:
    """What is to be sent together."""

    totals: dict[str, int] = field(default_factory=dict)
    values: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    entries: list[tuple[str, int, bytes]] = field(default_factory=list)
    nbytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.totals or self.values or self.entries)


class Insert:
    """What a process writes.

    Args:
        link: Link.
        layout: Layout.
        role: who writes; nothing for the driver.
        life: of who has the role.
        told: what the driver tells whoever joins.
        number: the number of the newest state of a value, as the server has it.
    """

    def __init__(
        self, link: Link, layout: Layout, role: str, life: int, told: Mapping[str, str], number: Callable[[str], int]
    ) -> None:
        self.link, self.layout, self.role = link, layout, role
        self.own = Own({}, {}, {})
        self._life, self._told, self._number = life, dict(told), number
        self._token = f"{life}:{secrets.token_hex(8)}"
        self._numbers: dict[str, int] = {}  # of the newest states of own values that were sent, be they there or not
        self._kept: dict[str, int] = {}  # of the oldest states of own values that may be there
        self._sent: dict[str, int] = {}  # lengths of own logs that others may see
        self._gathered, self._sending = _Batch(), _Batch()
        self._leased, self._alone = 0.0, 0

    def enter(self) -> None:
        """Let the exchange be there, or this process be one of its own.

        Raises:
            Refused: no room, another layout, or a role that is taken.
        """
        server, layout, address = self.link.server, self.layout, self.link.address
        if not self.role:
            needed = sum(size * kept for size, kept in layout.logs.values()) + BLOBS * sum(layout.values.values())
            redis_server.has_room(server, address, needed)
            self._lease(stale=True)
            return
        if server.hget(self.link.numbers, "layout") != layout.fingerprint():
            raise Refused(UNLIKE)
        until = time.monotonic() + HELD / 1e3 + 1.0
        while (holder := self._claim()[0]) != self._token:
            if time.monotonic() > until:
                raise Refused(f"{self.role} is taken by a process that is there ({holder})")
            time.sleep(redis_server.AGAIN)

    def append(self, log: str, number: int, entry: np.ndarray) -> None:
        """With the lock held, as all that follows."""
        self.link.wait(lambda: self._gathered.nbytes + self._sending.nbytes < GATHERED)
        self.own.lengths[log] = number + 1
        self._gathered.entries.append((log, number, entry.tobytes()))
        self._gathered.nbytes += entry.nbytes
        self.link.changed.notify_all()

    def publish(self, value: str, version: int, data: np.ndarray) -> None:
        """A value's newest state."""
        self.own.values[value] = self._gathered.values[value] = (version, data.tobytes())
        self.link.changed.notify_all()

    def put(self, total: str, number: int) -> None:
        """A number."""
        self.own.totals[total] = self._gathered.totals[total] = number
        self.link.changed.notify_all()

    def sent(self) -> bool:
        """Whether all is there for others."""
        return not self._gathered and not self._sending

    def forget(self) -> None:
        """What was written so far is others' to write from now on."""
        self.own, self._sent = Own({}, {}, {}), {}

    def send(self) -> None:
        """What the thread does, again and again."""
        link = self.link
        with link.changed:
            link.pause(lambda: not self.sent() or link.stale(), LEASE / 5)
            again = bool(self._sending)
            if not again:
                self._sending, self._gathered = self._gathered, _Batch()
            if stale := link.stale():
                link.fresh()
                # All at once, for whoever sees the newest totals must find the entries that they count.
                last, self._gathered = self._gathered, _Batch()
                self._sending = _Batch(
                    dict(self.own.totals), dict(self.own.values), self._sending.entries + last.entries,
                    self._sending.nbytes + last.nbytes,
                )  # fmt: skip
            batch = self._sending
        self._lease(stale)
        if batch:
            self._transact(batch, again)
        with link.changed:
            self._sending = _Batch()
            link.changed.notify_all()

    def leave(self) -> None:
        """Let another have the role."""
        self.link.server.eval(LEAVE, 1, self.link.key(f"role/{self.role}"), self._token)

    def _transact(self, batch: _Batch, again: bool) -> None:
        """All of a batch, or nothing; tried again, some of it may be there."""
        link, lengths = self.link, {log: number + 1 for log, number, _ in batch.entries}
        numbers = {value: self._numbers.get(value, self._number(value)) + 1 for value in batch.values}
        self._numbers |= numbers  # before they are sent: if the answer is lost, somebody may have read what has them
        mapping: dict[str, int] = {f"total/{name}": number for name, number in batch.totals.items()}
        mapping |= {f"length/{log}": length for log, length in (self._sent | lengths).items()}
        with link.server.pipeline() as pipe:
            for log, number, entry in batch.entries:
                kept = self.layout.logs[log][1]
                pipe.xadd(link.key(log), {FIELD: entry}, id=f"{number + 1}-0", maxlen=kept, approximate=False)
            for value, (version, blob) in batch.values.items():
                number = numbers[value]
                pipe.set(link.blob(value, number), blob)
                for old in range(self._kept.get(value, number - BLOBS), number - BLOBS + 1):
                    pipe.delete(link.blob(value, old))
                mapping |= {f"number/{value}": number, f"version/{value}": version}
            pipe.hset(link.numbers, mapping=mapping)
            pipe.publish(link.numbers, b"")
            answers = pipe.execute(raise_on_error=False)
        for answer in answers:
            if not isinstance(answer, Exception):
                continue
            if "equal or smaller" not in str(answer):
                raise answer
            if not again:
                raise Disconnected(f"another process of {link.run} writes what {self.role or 'the driver'} writes")
        self._sent |= lengths
        self._kept |= {value: number - BLOBS + 1 for value, number in numbers.items()}

    def _lease(self, stale: bool) -> None:
        """Say that this process is there."""
        link = self.link
        if time.monotonic() - self._leased < LEASE and not stale:
            return
        self._leased = time.monotonic()
        if not self.role:
            if not (there := redis_server.lives(link.server, link.run)):
                link.forgotten()
            if stale or not there:
                link.server.hset(link.numbers, "layout", self.layout.fingerprint())
                redis_server.tell(link.server, link.run, self._told)
            return
        holder, known = self._claim()
        if holder != self._token:
            raise Disconnected(f"{self.role} was taken over by {holder}")
        if not known:
            link.forgotten()
        self._alone = 0 if redis_server.alive(link.server, link.run) else self._alone + 1
        if self._alone > ALONE:
            raise Disconnected(f"the driver of {link.run} is gone")

    def _claim(self) -> tuple[str, bool]:
        """Whose the role now is, and whether it was somebody's."""
        key = self.link.key(f"role/{self.role}")
        holder, known = self.link.server.eval(CLAIM, 1, key, self._token, self._life, HELD)
        return holder.decode(), bool(known)
