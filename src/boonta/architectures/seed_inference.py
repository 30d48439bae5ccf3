"""What an inference thread of SEED does: a batch of steps in, actions out, complete trajectories into a chunk."""

import queue
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from boonta.architectures.batching import Request, buckets
from boonta.architectures.seed import Seed, Table, Told
from boonta.core import host, nests, random
from boonta.core.spec import Spec
from boonta.core.types import Array, Params, TimeStep, Trajectory

if TYPE_CHECKING:
    from boonta.architectures.seed_threads import Part, Session, Threads

CHECK = 0.2  # seconds between looks at whether all is over


class Plan(NamedTuple):
    """Who does what on one host.

    Attributes:
        inference: devices that act; each has an equal part of the environments.
        envs: environments of this host.
        size: trajectories of a chunk, of this host.
        minimum: environments that a batch of inference waits for; 0 for those of the smallest client.
        maximum: environments of a batch, and of a client.
        deadline: seconds that it waits.
        ahead: chunks of trajectories that may lie ready before clients wait for the learner.
        timeout: seconds in which nobody was answered, after which the run fails.
        patient: whether it waits for clients, as long as there are none, without end.
    """

    inference: Sequence[Any]
    envs: int
    size: int
    minimum: int
    maximum: int
    deadline: float
    ahead: int = 1
    timeout: float = 120.0
    patient: bool = False


class Item(NamedTuple):
    """What an inference thread hands over: a chunk on its device, and what is to be told about it."""

    chunk: Trajectory
    told: list[Told]


class Compiled(NamedTuple):
    """What runs on an inference device, by the size of a batch."""

    table: Callable[..., Table]
    chunk: Callable[..., Trajectory]
    reset: dict[int, Callable[..., Table]]
    act: dict[int, Callable[..., tuple[Table, Array]]]
    close: dict[int, Callable[..., tuple[Table, Trajectory, Told]]]


def compiled(unit: Seed, spec: Spec, params: Params, plan: Plan, device: Any) -> Compiled:
    """Everything compiled for every size of a batch: nothing is compiled while clients wait."""
    here = jax.sharding.SingleDeviceSharding(device)
    placed = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)  # noqa: E731
    rows = lambda n: jax.ShapeDtypeStruct((n,), np.int32)  # noqa: E731
    params, key = placed(params), placed(jax.eval_shape(random.key, 0))
    version = jax.ShapeDtypeStruct((), np.int32)
    envs, sizes = plan.envs // len(plan.inference), buckets(plan.maximum)
    table = jax.jit(unit.table).lower(params, key, rows(envs))
    chunk = jax.jit(unit.chunk).lower(params)
    tables, chunks = placed(table.out_info), placed(chunk.out_info)
    steps = {n: placed(host.empty(spec, n)) for n in sizes}
    reset = {n: jax.jit(unit.reset, donate_argnums=2).lower(params, key, tables, rows(n), rows(n)) for n in sizes}
    act = {n: jax.jit(unit.act, donate_argnums=2).lower(params, version, tables, rows(n), steps[n]) for n in sizes}
    closing = jax.jit(unit.close, donate_argnums=(0, 1))
    close = {n: closing.lower(tables, chunks, rows(n), rows(n), steps[n]) for n in sizes}
    compile_all = lambda lowered: {n: one.compile() for n, one in lowered.items()}  # noqa: E731
    return Compiled(table.compile(), chunk.compile(), compile_all(reset), compile_all(act), compile_all(close))


class Inference:
    """An inference thread's table, its chunk half full, and how far its rows are."""

    def __init__(self, threads: "Threads", part: "Part") -> None:
        self.threads, self.part, self.plan = threads, part, threads.plan
        self.compiled = threads.compiled[part.device]
        self.key = jax.device_put(random.key(threads.seed), part.device)
        index = np.arange(part.first, part.first + part.envs, dtype=np.int32)
        params, _ = threads.latest[part.device]
        self.table = self.compiled.table(params, self.key, index)
        self.chunk, self.filled, self.told = self.compiled.chunk(params), 0, []
        self.t = np.zeros(part.envs, int)
        self.sizes = buckets(self.plan.maximum)
        self.batches = {size: host.empty(threads.spec, size) for size in self.sizes}
        self.length = threads.unit.unroll

    def run(self) -> None:
        """Answer clients until all is over."""
        trace = self.threads.trace
        while not self.threads.stopping:
            with trace.span("wait for clients"):
                requests = self.part.batcher.take(CHECK)
            if requests:
                with trace.span("act"):
                    actions = self._answer(requests)
                at = 0
                for request in requests:
                    request.answer = actions[at : at + request.rows]
                    at += request.rows
                    request.ready.set()

    def _answer(self, requests: list[Request]) -> np.ndarray:
        params, version = self.threads.latest[self.part.device]
        rows = np.concatenate([self._rows(request.content[0]) for request in requests])
        size = next(size for size in self.sizes if size >= len(rows))
        timestep, at = self.batches[size], 0
        for request in requests:
            session, part = request.content
            nests.mapped(lambda all_, new: all_.__setitem__(slice(at, at + request.rows), new), timestep, part)  # noqa: B023
            at += request.rows
            if session.fresh:
                self._reset(params, session)
        padded = self._padded(rows, size, self.part.envs)
        full = np.flatnonzero(self.t[rows] == self.length)
        while len(full):
            full = self._close(rows, full, timestep)
        self.table, actions = self.compiled.act[size](params, version, self.table, padded, timestep)
        self.t[rows] += 1
        return np.asarray(actions)

    def _close(self, rows: np.ndarray, full: np.ndarray, timestep: TimeStep) -> np.ndarray:
        """Take out as many of the complete trajectories as the chunk has room for; which are left."""
        now, left = np.split(full, [min(len(full), self.plan.size - self.filled)])
        room = next(one for one in self.sizes if one >= len(now))
        places = self._padded(self.filled + np.arange(len(now)), room, self.plan.size)
        ends = nests.mapped(lambda x: x[self._padded(now, room, 0)], timestep)
        done = self._padded(rows[now], room, self.part.envs)
        self.table, self.chunk, told = self.compiled.close[room](self.table, self.chunk, done, places, ends)
        self.told.append(told)
        self.t[rows[now]] = 0
        self.filled += len(now)
        if self.filled == self.plan.size:
            self._hand_over()
        return left

    def _hand_over(self) -> None:
        item = Item(self.chunk, self.told)
        with self.threads.trace.span("wait for the learner"):
            while not self.threads.stopping:
                try:
                    self.threads.ready.put(item, timeout=CHECK)
                    break
                except queue.Full:
                    continue
        params, _ = self.threads.latest[self.part.device]
        self.chunk, self.filled, self.told = self.compiled.chunk(params), 0, []

    def _reset(self, params: Params, session: "Session") -> None:
        rows = self._rows(session)
        size = next(size for size in self.sizes if size >= len(rows))
        lives = np.full(size, session.life, np.int32)
        padded = self._padded(rows, size, self.part.envs)
        self.table = self.compiled.reset[size](params, self.key, self.table, padded, lives)
        self.t[rows] = 0
        session.fresh = False

    def _rows(self, session: "Session") -> np.ndarray:
        return np.arange(session.first - self.part.first, session.first - self.part.first + session.count)

    @staticmethod
    def _padded(values: np.ndarray, size: int, beyond: int) -> np.ndarray:
        padded = np.full(size, beyond, np.int32)
        padded[: len(values)] = values
        return padded
