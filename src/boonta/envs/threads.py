"""Parts of a batch, each in a thread of its own; for environments that let go of Python's lock."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from boonta.core import host
from boonta.core.faults import Unclosed
from boonta.core.host import Workers
from boonta.core.spec import Spec
from boonta.core.types import TimeStep
from boonta.envs.parts import CLOSING, Died, Part, slices, view


class Threads:
    """Parts of a batch, each in a thread of its own; for environments that let go of Python's lock.

    Args:
        spec: Spec.
        part: makes a part, in its thread.
        seeds: one for each environment.
        workers: how many threads, and how long an answer may take.

    Raises:
        Died: a part raised or did not answer; from `reset` and `step` as well. The batch is then of no use. A thread
            that hangs cannot be ended: it is left behind, and does not keep the process alive.
    """

    def __init__(self, spec: Spec, part: Part, seeds: Sequence[int], workers: Workers) -> None:
        self.out, self.timeout = host.empty(spec, len(seeds)), workers.timeout
        self.slices = slices(len(seeds), workers.count)
        self.parts: dict[int, host.Batch] = {}
        self.unclosed: list[Exception] = []
        self.asked: list[queue.SimpleQueue[Callable[[], Any] | None]] = [queue.SimpleQueue() for _ in self.slices]
        self.answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._work, args=(i,), name=f"environments {i}", daemon=True)
            for i in range(len(self.slices))
        ]
        for thread in self.threads:
            thread.start()

        def begin(i: int) -> None:
            self.parts[i] = part(seeds[self.slices[i]], view(self.out, self.slices[i]))

        try:
            self._all(begin)
        except BaseException:
            with suppress(Unclosed):  # what went wrong before says more
                self.close()
            raise

    def reset(self) -> TimeStep:
        self.each(lambda i, part: part.reset())
        return self.out

    def step(self, action: np.ndarray) -> TimeStep:
        self.each(lambda i, part: part.step(action[self.slices[i]]))
        return self.out

    def each(self, what: Callable[[int, host.Batch], Any]) -> None:
        """Call it with every part, in the part's thread; even where one raises, the others have then been called."""
        self._all(lambda i: what(i, self.parts[i]))

    def frame(self) -> np.ndarray:
        return self.parts[0].frame()

    def close(self) -> None:
        for asked in self.asked:
            asked.put(None)
        deadline = time.monotonic() + min(self.timeout, CLOSING)
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if self.unclosed:
            raise self.unclosed.pop()

    def _all(self, what: Callable[[int], Any]) -> None:
        for i, asked in enumerate(self.asked):
            asked.put(partial(what, i))
        failures = []
        deadline = time.monotonic() + self.timeout
        for _ in self.asked:
            try:
                i, answer = self.answers.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                failures.append(f"an environment thread did not answer within {self.timeout:g} s")
                break
            if answer:
                failures.append(f"environment thread {i} raised:\n{answer}")
        if failures:
            raise Died("\n".join(failures))

    def _work(self, i: int) -> None:
        while (what := self.asked[i].get()) is not None:
            try:
                what()
                answer = ""
            except BaseException:
                answer = traceback.format_exc()
            self.answers.put((i, answer))
        if i in self.parts:
            try:
                self.parts[i].close()
            except Exception as error:
                self.unclosed.append(error)
