"""Dynamic batching: requests of many callers answered together, without waiting for those that do not come."""

import threading
import time
from collections.abc import Callable
from typing import Any

CHECK = 1.0  # seconds between looks at whether all is over


class Closed(Exception):
    """The batcher takes no more requests, or gives up those that it has."""


class Request:
    """What a caller wants: `rows` of a batch, and room for the answer."""

    def __init__(self, content: Any, rows: int) -> None:
        self.content, self.rows, self.since = content, rows, time.monotonic()
        self.answer: Any = None
        self.ready = threading.Event()


class Batcher:
    """Where callers wait for answers and the answering thread for callers.

    Args:
        maximum: rows of a batch; a request has no more.
        deadline: seconds after its oldest request when a batch goes whatever it has.
        least: () -> rows that a batch waits for until then.
    """

    def __init__(self, maximum: int, deadline: float, least: Callable[[], int]) -> None:
        self.maximum, self.deadline = maximum, deadline
        self.batches = self.rows = 0  # taken so far
        self._least = least
        self._waiting: list[Request] = []
        self._taken: list[Request] = []  # the last batch, maybe not answered yet
        self._closed = False
        self._changed = threading.Condition()

    def ask(self, content: Any, rows: int) -> Any:
        """The answer to a request, however long it takes: who answers may have to wait for a learner.

        Raises:
            Closed: there will be none.
        """
        request = Request(content, rows)
        with self._changed:
            if self._closed:
                raise Closed
            self._waiting.append(request)
            self._changed.notify_all()
        while not request.ready.wait(CHECK):
            if self._closed:  # after it was taken
                raise Closed
        if request.answer is None:
            raise Closed
        return request.answer

    def take(self, seconds: float) -> list[Request]:
        """The next requests to answer together; none where there were none for so long, or all is over."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._waiting:
                    rows = sum(request.rows for request in self._waiting)
                    due = self._waiting[0].since + self.deadline
                    if now >= due or rows >= self._least() or rows >= self.maximum:
                        return self._first()
                    self._changed.wait(due - now)
                elif now >= end:
                    return []
                else:
                    self._changed.wait(end - now)
        return []

    def close(self) -> None:
        """Let all callers go without an answer."""
        with self._changed:
            self._closed = True
            for request in [*self._waiting, *self._taken]:
                request.ready.set()
            self._waiting.clear()
            self._changed.notify_all()

    def _first(self) -> list[Request]:
        taken, rows = [], 0
        while self._waiting and rows + self._waiting[0].rows <= self.maximum:
            taken.append(self._waiting.pop(0))
            rows += taken[-1].rows
        self._taken = taken
        self.batches, self.rows = self.batches + 1, self.rows + rows
        return taken


def buckets(maximum: int) -> list[int]:
    """Sizes that batches are padded to, ascending: 1, 2, 4 ... and the maximum."""
    sizes, size = [], 1
    while size < maximum:
        sizes.append(size)
        size *= 2
    return [*sizes, maximum]
