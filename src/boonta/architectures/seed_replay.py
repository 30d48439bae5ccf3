"""Replay between SEED's clients and its learner: one thread puts in what was experienced, others draw ahead of time.

One more acts again on what is stored, where the learner asks for that.
"""

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.core import devices, nests
from boonta.core.trace import Trace
from boonta.core.types import Ids, PyTree, Sample, Trajectory
from boonta.replay.host import HostReplay
from boonta.replay.limiter import Limiter

CHECK = 0.2  # seconds between looks at whether all is over


class Drawn(NamedTuple):
    """A sample on the learner devices, and where its priorities go."""

    sample: Sample
    ids: Ids


class Feeder:
    """Threads around a replay.

    Args:
        replay: HostReplay.
        limiter: Limiter.
        mesh: of the learner devices.
        take: () -> Trajectory [N, ...] on a device, None where there is none yet.
        first: (Trajectory [K]) -> priorities [K] of what enters; None for the highest so far.
        ahead: samples that are drawn before they are asked for.
        drawers: threads that draw.
        trace: where spans of time go.
        again: (Trajectory [n]) -> extras [n, U, ...] and the version of the parameters that made them, for so many
            pieces as `insert` puts in at a time; None where nothing is acted on again.
    """

    def __init__(
        self,
        replay: HostReplay,
        limiter: Limiter,
        mesh: Mesh,
        take: Callable[[], Trajectory | None],
        first: Callable[[Trajectory], Any] | None,
        ahead: int,
        drawers: int,
        trace: Trace,
        again: Callable[[Trajectory], tuple[PyTree, int]] | None = None,
    ) -> None:
        self.replay, self.limiter, self.trace = replay, limiter, trace
        self._take, self._first, self._again = take, first, again
        self._due = 0.0  # pieces to act on again
        self._group = 0  # of them at a time
        self._owing = threading.Condition()
        self._sharding = NamedSharding(mesh, P(devices.LEARNERS))
        self._drawn: queue.Queue[Drawn] = queue.Queue(ahead)
        self._failure: str | None = None
        self._stopping = False
        work = [("insert", self._insert), *((f"prefetch {i}", self._draw) for i in range(drawers))]
        if again is not None:
            work.append(("reanalyse", self._renew))
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, run), name=name, daemon=True) for name, run in work
        ]

    def start(self) -> None:
        """Set the threads going."""
        for thread in self._threads:
            thread.start()

    def get(self) -> Drawn | None:
        """The next sample; None where there is none yet."""
        try:
            return self._drawn.get(timeout=CHECK)
        except queue.Empty:
            return None

    def failure(self) -> str | None:
        """What a thread died of."""
        return self._failure

    def stop(self, seconds: float) -> None:
        """End the threads; one that hangs is left behind after so long."""
        self._stopping = True
        self.limiter.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        try:
            while not self._stopping:
                run()
        except BaseException:
            self._failure = f"{name} died:\n{traceback.format_exc()}"

    def _insert(self) -> None:
        """Put in one chunk of pieces."""
        chunk = self._take()
        if chunk is None:
            return
        each = self.replay.sizes.each
        with self.trace.span("fetch"):
            chunk = jax.device_get(chunk)
        pieces = range(len(chunk.origin.environment))
        with self.trace.span("wait for samples"):
            if not self.limiter.may_insert(len(pieces) * each):
                return
        with self.trace.span("wait for reanalysis"), self._owing:
            while self._due > 2 * len(pieces) * max(self.replay.experience.reanalyse, 1.0) and not self._stopping:
                self._owing.wait(CHECK)
        with self.trace.span("insert"):
            ids = [self.replay.insert(nests.mapped(lambda x, i=i: x[i], chunk)) for i in pieces]
            complete = nests.mapped(lambda *parts: np.concatenate(parts), ids[0], *ids[1:])
        if self._first is not None:
            self._prioritize(complete, len(pieces) * each)
        self.limiter.inserts(len(complete.place))
        if self._again is not None and self.limiter.inserted >= self.limiter.minimum:
            with self._owing:
                self._group = len(pieces)
                self._due += len(pieces) * self.replay.experience.reanalyse
                self._owing.notify_all()

    def _prioritize(self, ids: Ids, most: int) -> None:
        """First priorities; of so many windows at most, so that nothing is compiled again."""
        count = len(ids.place)
        if not count:
            return
        with self.trace.span("first priorities"):
            padded = nests.mapped(lambda x: np.resize(x, most), ids)
            assert self._first is not None
            self.replay.revise(ids, np.asarray(self._first(self.replay.window(padded)))[:count])

    def _renew(self) -> None:
        """Act again on some pieces."""
        with self.trace.span("wait for inserts"), self._owing:
            if not self._owing.wait_for(lambda: 0 < self._group <= self._due, CHECK):
                return
        assert self._again is not None
        ids, past = self.replay.past(self._group)
        with self.trace.span("act again"):
            extras, version = self._again(past)
            extras = jax.device_get(extras)
        windows = self.replay.renew(ids, extras, version)
        if self._first is not None:
            self._prioritize(windows, self._group * self.replay.sizes.each)
        with self._owing:
            self._due -= self._group
            self._owing.notify_all()

    def _draw(self) -> None:
        """Draw one sample, and place it."""
        with self.trace.span("wait for inserts"):
            if not self.limiter.sample(self.replay.batch, drawable=lambda: len(self.replay) > 0):
                return
        with self.trace.span("sample"):
            sample = self.replay.sample()
        with self.trace.span("place"):
            # Each host's own samples are its part of the whole.
            placed = devices.placed(sample, self._sharding)
        while not self._stopping:
            try:
                self._drawn.put(Drawn(placed, sample.ids), timeout=CHECK)
                return
            except queue.Full:
                continue
