"""Where time goes: spans of every thread, summed by name, and kept one by one where a timeline is wanted."""

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST = 2_000_000  # spans that are kept: a few hundred megabytes


class Trace:
    """A clock that threads share.

    Args:
        keep: keep every span, for `timeline`; else only their sums.
    """

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self.dropped = 0
        self._began = time.perf_counter()
        self._spans: list[tuple[str, int, float, float]] = []
        self._names: dict[int, str] = {}
        self._sums: dict[int, dict[str, float]] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """The time that the body takes, under this name and the thread's."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            end, thread = time.perf_counter(), threading.get_ident()
            if thread not in self._sums:
                self._names[thread] = threading.current_thread().name
                self._sums[thread] = defaultdict(float)
            self._sums[thread][name] += end - begin
            if self.keep and len(self._spans) < MOST:
                self._spans.append((name, thread, begin - self._began, end - begin))
            else:
                self.dropped += self.keep

    def sums(self) -> dict[str, dict[str, float]]:
        """Seconds so far, by thread and name."""
        return {self._names[thread]: dict(sums) for thread, sums in list(self._sums.items())}

    def timeline(self) -> str:
        """All spans in the JSON of Chrome's and Perfetto's trace viewers, times in microseconds."""
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": name}}
            for thread, name in self._names.items()
        ]
        events += [
            {"ph": "X", "pid": 1, "tid": thread, "name": name, "ts": round(begin * 1e6, 1), "dur": round(took * 1e6, 1)}
            for name, thread, begin, took in self._spans
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped": self.dropped}})
