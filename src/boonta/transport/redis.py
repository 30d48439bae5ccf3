"""An exchange in a Redis server, for processes of several machines.

A log is a stream whose entries have their numbers for ids, trimmed to what is kept. A value is a blob that is never
changed, under a key of its own; which is newest, and its version, stands in one hash, beside all totals and lengths.
Whatever a process writes goes through one thread (`redis_insert`), in order, as one transaction of all that has
gathered; whatever it reads comes through another (`redis_prefetch`), which is told of changes and shows nothing before
it has fetched what belongs to it. So who acts or learns seldom waits for Redis.

What a process wrote it can write again: after a new connection it does, since the server may have forgotten everything.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from boonta.core.exchange import Entries, Layout
from boonta.transport import redis_server
from boonta.transport.redis_insert import HELD, NOBODY, Insert
from boonta.transport.redis_link import FIELD, Link
from boonta.transport.redis_prefetch import LOOK, Prefetch, at_a_time


class Redis:
    """See `core.exchange.Exchange`.

    Args:
        layout: Layout.
        address: of the server; see `redis_server.checked`.
        run: the name of the run, as `redis_server.begun` gave it.
        role: who takes part; nothing for the driver, who makes the exchange and deletes it.
        life: of who has the role; a later one takes it over.
        patience: seconds for which the server may fail before the process no longer takes part.
        told: what the driver tells whoever joins.

    Raises:
        Refused: no such server or password, no room, another layout, or a role that is taken.
        Disconnected: whoever takes a role has waited for the server too long.
    """

    def __init__(
        self, layout: Layout, address: str, run: str, role: str = "", life: int = 0, patience: float = 60.0,
        told: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        self.layout, self.address, self.run, self.role = layout, address, run, role
        self._link = link = Link(address, run, patience)
        self._read = Prefetch(link, layout)
        self._write = Insert(link, layout, role, life, told, lambda value: self._read.seen.numbers[value])
        waits = patience if role else 0.0
        redis_server.called(address, self._write.enter, waits)
        redis_server.called(address, self._read.look, waits)
        self._shown = self._read.seen
        link.fresh()
        self._threads = [link.start("insert", self._write.send), link.start("prefetch", self._read.receive)]

    def append(self, log: str, entry: np.ndarray) -> None:
        with self._link.changed:
            self._write.append(log, self._length(log), entry)

    def read(self, log: str, begin: int, most: int) -> Entries:
        if log in self._write.own.lengths:
            self.flush()
        self._link.check()
        return self._read.read(log, begin, most)

    def length(self, log: str) -> int:
        with self._link.changed:
            self._link.check()
            return self._length(log)

    def restore(self, log: str, begin: int, data: np.ndarray) -> None:
        self.flush()
        server, key = self._link.server, self._link.key(log)

        def write() -> None:
            server.delete(key)
            each = at_a_time(self.layout, log)
            for first in range(0, len(data), each):
                with server.pipeline() as pipe:
                    for i, entry in enumerate(data[first : first + each], begin + first):
                        pipe.xadd(key, {FIELD: entry.tobytes()}, id=f"{i + 1}-0")
                    pipe.execute()
            server.hset(self._link.numbers, f"length/{log}", begin + len(data))
            self._read.look()

        self._link.called(write)

    def hand_over(self) -> None:
        self.flush()
        self._link.called(self._read.look)
        with self._link.changed:
            self._write.forget()

    def publish(self, value: str, version: int, data: np.ndarray) -> None:
        with self._link.changed:
            self._link.check()
            self._write.publish(value, version, data)

    def newest(self, value: str, after: int) -> tuple[int, np.ndarray] | None:
        self._link.check()
        if own := self._write.own.values.get(value):
            return (own[0], np.frombuffer(own[1], np.uint8)) if own[0] > after else None
        return self._read.newest(value, after)

    def put(self, total: str, number: int) -> None:
        with self._link.changed:
            self._link.check()
            self._write.put(total, number)

    def totals(self) -> dict[str, int]:
        with self._link.changed:
            self._link.check()
            self._shown = self._read.seen
            return self._shown.totals | self._write.own.totals

    def pause(self, times: int) -> None:
        with self._link.changed:
            self._link.pause(lambda: self._read.seen is not self._shown, LOOK)

    def close(self) -> None:
        with self._link.changed:
            self._link.pause(self._write.sent, redis_server.ANSWER)
            self._link.closing.set()
            self._link.changed.notify_all()
        for thread in self._threads:
            thread.join(2 * redis_server.ANSWER)
        self._read.close()
        with suppress(redis_server.errors()):  # a server that is not there keeps nothing, or its next run sweeps it out
            if self.role:
                self._write.leave()
            else:
                redis_server.swept(self._link.server, self.run)
                redis_server.tidied(self._link.server)  # of a run that was killed just before this one began
        self._link.server.close()

    def flush(self) -> None:
        """Wait until all that was written is there for others."""
        with self._link.changed:
            self._link.wait(self._write.sent)

    def holder(self, role: str) -> str:
        """Whose a role is; nothing for nobody's."""
        self._link.check()
        holder = self._link.called(lambda: self._link.server.get(self._link.key(f"role/{role}")))
        return "" if holder in (None, NOBODY) else holder.decode()

    def dismiss(self, role: str) -> None:
        """Take a role from whoever has it, who learns of it even where it hangs; soon another may have it."""
        self._link.check()
        self._link.called(lambda: self._link.server.set(self._link.key(f"role/{role}"), NOBODY, px=HELD))

    def _length(self, log: str) -> int:
        own = self._write.own.lengths.get(log)
        return self._read.seen.lengths[log] if own is None else own
