"""What the threads of a process that takes part in an exchange over Redis share: the server, a lock, and their end."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from boonta.core.exchange import Disconnected
from boonta.transport import redis_server

FIELD = b"d"  # of an entry of a stream, its bytes

T = TypeVar("T")


class Link:
    """A process' connections to the server.

    Args:
        address: of the server.
        run: the name of the run.
        patience: seconds for which the server may fail before the process no longer takes part.

    Attributes:
        server: redis.Redis.
        changed: the lock of all that threads share; notified where something of it changes.
        closing: whether the process leaves.
    """

    def __init__(self, address: str, run: str, patience: float) -> None:
        self.address, self.run, self.patience = address, run, patience
        self.server = redis_server.client(address, self.forgotten)
        self.changed, self.closing = threading.Condition(), threading.Event()
        self.numbers = f"{redis_server.prefix(run)}numbers"  # the key of all numbers, and where changes are published
        self._broken: Disconnected | None = None
        self._connects = self._known = 0

    def key(self, name: str) -> str:
        """Of something of the run."""
        return redis_server.prefix(self.run) + name

    def blob(self, value: str, number: int) -> str:
        """The key of one state of a value."""
        return self.key(f"{value}:{number}")

    def stale(self) -> bool:
        """Whether the server may have forgotten what was written."""
        return self._known != self._connects

    def fresh(self) -> None:
        """What was written is about to be written again."""
        self._known = self._connects

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A thread that works until the end; what may pass is waited for."""

        def guarded() -> None:
            since = None
            while not self.closing.is_set() and not self._broken:
                try:
                    work()
                    since = None
                except Exception as error:
                    now = time.monotonic()
                    since = now if since is None else since
                    if isinstance(error, Disconnected):
                        self.cut(error)
                    elif not redis_server.passing(error) or now - since > self.patience:
                        self.cut(redis_server.gone(self.address, now - since, error))
                    self.closing.wait(redis_server.AGAIN)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def called(self, work: Callable[[], T]) -> T:
        """What a call gives that somebody waits for; what may pass is waited for."""
        until = time.monotonic() + self.patience
        while True:
            try:
                return work()
            except redis_server.errors() as error:
                if not redis_server.passing(error) or time.monotonic() > until or self.closing.wait(redis_server.AGAIN):
                    raise redis_server.gone(self.address, self.patience, error) from error

    def check(self) -> None:
        """Raise what ended it, if it has ended."""
        if self._broken:
            raise self._broken

    def cut(self, error: Disconnected) -> Disconnected:
        """End it."""
        with self.changed:
            self._broken = self._broken or error
            self.changed.notify_all()
        return error

    def wait(self, until: Callable[[], bool]) -> None:
        """With the lock held, until this is so."""
        self.check()
        self.changed.wait_for(lambda: until() or self._broken is not None, 2 * self.patience)
        self.check()
        if not until():
            raise self.cut(redis_server.gone(self.address, 2 * self.patience, Exception("it takes too little")))

    def pause(self, until: Callable[[], bool], seconds: float) -> None:
        """With the lock held, until this is so, or it is enough."""
        self.changed.wait_for(lambda: until() or self._broken is not None or self.closing.is_set(), seconds)

    def forgotten(self) -> None:
        """The server may have forgotten what was written: with every new connection, or where it shows."""
        self._connects += 1
