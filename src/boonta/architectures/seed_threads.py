"""What moves in SEED while it acts: clients' sessions, and inference threads with their tables."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from boonta.architectures.batching import Batcher, Request, buckets
from boonta.architectures.seed import Seed, Table, Told
from boonta.core import host, nests, random
from boonta.core.spec import Spec
from boonta.core.trace import Trace
from boonta.core.types import Array, Params, TimeStep, Trajectory

LIMIT = 10.0  # seconds that an ending run waits for a thread
CHECK = 0.2  # seconds between looks at whether all is over


class Plan(NamedTuple):
    """Who does what on one host.

    Attributes:
        inference: devices that act; each has an equal part of the environments.
        envs: environments of this host.
        size: trajectories of a chunk, of this host.
        minimum: environments that a batch of inference waits for.
        maximum: environments of a batch, and of a client.
        deadline: seconds that it waits.
        ahead: chunks of trajectories that may lie ready before clients wait for the learner.
        timeout: seconds without experience after which the run fails.
    """

    inference: Sequence[Any]
    envs: int
    size: int
    minimum: int
    maximum: int
    deadline: float
    ahead: int = 1
    timeout: float = 120.0


class Failed(RuntimeError):
    """A thread died, or nothing came; the message says which, with the traceback."""


class Taken(Exception):
    """Environments that a client wants are not to be had; `why` is `there` (another's) or `room`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Item(NamedTuple):
    """What an inference thread hands over: a chunk on its device, and what is to be told about it."""

    chunk: Trajectory
    told: list[Told]


class Session:
    """A client's environments: rows first ... first + count - 1 of one inference device."""

    def __init__(self, part: "Part", first: int, count: int, life: int, name: str) -> None:
        self.part, self.first, self.count, self.life, self.name = part, first, count, life, name
        self.fresh = True  # its rows are still those of whoever had them before

    def environments(self) -> str:
        """In words."""
        return f"environments {self.first} to {self.first + self.count - 1}"

    def act(self, timestep: TimeStep) -> np.ndarray:
        """TimeStep [K, ...] -> actions [K, ...].

        Raises:
            Closed: all is over.
        """
        return self.part.batcher.ask((self, timestep), self.count)

    def leave(self, why: str) -> None:
        """Free the environments."""
        self.part.threads.left(self, why)


class Part:
    """An inference device's share: environments first ... first + envs - 1."""

    def __init__(self, threads: "Threads", device: Any, first: int) -> None:
        plan = threads.plan
        self.threads, self.device, self.first = threads, device, first
        self.envs = plan.envs // len(plan.inference)
        self.sessions: list[Session] = []
        present = lambda: sum(session.count for session in self.sessions)  # noqa: E731
        self.batcher = Batcher(plan.minimum, plan.maximum, plan.deadline, present)


class Compiled(NamedTuple):
    """What runs on an inference device, by the size of a batch."""

    table: Callable[..., Table]
    chunk: Callable[..., Trajectory]
    reset: dict[int, Callable[..., Table]]
    act: dict[int, Callable[..., tuple[Table, Array]]]
    close: dict[int, Callable[..., tuple[Table, Trajectory, Told]]]


class Threads:
    """Sessions, inference threads, and the queue of what they make.

    Args:
        unit: Seed.
        spec: of the environments.
        plan: Plan.
        seed: of the run.
        trace: where spans of time go.
    """

    def __init__(self, unit: Seed, spec: Spec, plan: Plan, seed: int, trace: Trace) -> None:
        self.unit, self.spec, self.plan, self.seed, self.trace = unit, spec, plan, seed, trace
        first = jax.process_index() * plan.envs
        each = plan.envs // len(plan.inference)
        self.parts = [Part(self, device, first + i * each) for i, device in enumerate(plan.inference)]
        self.ready: queue.Queue[Item] = queue.Queue(plan.ahead)
        self.joined = self.dropped = 0
        self.look: Callable[[], None] = lambda: None  # after others that must go on; raises Failed
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._compiled: dict[Any, Compiled] = {}
        self.latest: dict[Any, tuple[Params, np.ndarray]] = {}
        self._lives = np.full(plan.envs, -1)
        self._base = 0
        self._threads: list[threading.Thread] = []
        self._failure: str | None = None
        self._batched = (0, 0)
        self._stopping = False
        self._lock = threading.Lock()

    def compile(self, params: Params) -> None:
        """Compile all there is to compile, for parameters like these."""
        params = {name: params[name] for name in self.unit.reads}
        for device in self.plan.inference:
            self._compiled[device] = _compiled(self.unit, self.spec, params, self.plan, device)

    def start(self, life: int = 0) -> None:
        """Answer clients with the parameters that were published; their environments' lives begin with this one."""
        self._base = life
        for which in range(len(self.parts)):
            thread = threading.Thread(target=self._infer, args=(which,), name=f"inference {which}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self, count: int, first: int, name: str) -> Session:
        """Let a client with so many environments in; `first` below 0 for any that are free.

        Raises:
            Taken: there are none, or they are another's.
        """
        with self._lock:
            part, first = self._place(count, first)
            rows = slice(first - self.parts[0].first, first - self.parts[0].first + count)
            life = int(self._lives[rows].max()) + 1
            self._lives[rows] = life
            session = Session(part, first, count, self._base + life, name)
            part.sessions.append(session)
            self.joined += 1
            return session

    def left(self, session: Session, why: str) -> None:
        """Free a client's environments."""
        with self._lock:
            session.part.sessions.remove(session)
            if not self._stopping:
                self.dropped += 1
                self._notes.put(f"{session.environments()} ({session.name}): {why}")

    def publish(self, params: Params, version: Array) -> None:
        """Parameters device to device; inference threads pick them up with their next batch."""
        here = jax.tree.map(lambda x: x.addressable_data(0), {name: params[name] for name in self.unit.reads})
        at = np.asarray(version)  # the next update takes the array over
        self.latest = {device: (jax.device_put(here, device), at) for device in self.plan.inference}

    def take(self, seconds: float = CHECK) -> Item | None:
        """The next chunk; None where none came for so long.

        Raises:
            Failed: an inference thread died.
        """
        self.check()
        try:
            return self.ready.get(timeout=seconds)
        except queue.Empty:
            return None

    def silence(self) -> str:
        """Why nothing may have come, in words."""
        whose = f"from {self.present()} of {self.plan.envs} environments"
        return f"no experience came for {self.plan.timeout:g} s, {whose}"

    def present(self) -> int:
        """Environments of all clients that are here."""
        return sum(session.count for part in self.parts for session in part.sessions)

    def check(self) -> None:
        """Look after the threads, for whoever does not wait for them.

        Raises:
            Failed: one of them died.
        """
        if self._failure:
            raise Failed(self._failure)
        self.look()

    def batch_mean(self) -> float:
        """Environments in a batch of inference, in the mean since the last call; NaN where there was none."""
        batches, rows = (sum(getattr(part.batcher, name) for part in self.parts) for name in ("batches", "rows"))
        (before, rows_before), self._batched = self._batched, (batches, rows)
        return (rows - rows_before) / (batches - before) if batches > before else float("nan")

    def told(self) -> list[str]:
        """What has happened since the last call and must be told."""
        return [self._notes.get() for _ in range(self._notes.qsize())]

    def stop(self) -> None:
        """End all threads, and let all clients go."""
        self._stopping = True
        for part in self.parts:
            part.batcher.close()
        deadline = time.monotonic() + LIMIT
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _place(self, count: int, first: int) -> tuple[Part, int]:
        """A part with room for so many environments, and where in it. The part with the fewest clients first."""
        if count > self.plan.maximum:
            raise Taken("room", f"at most {self.plan.maximum} environments a client, got {count}")
        if first < 0:
            for part in sorted(self.parts, key=lambda part: sum(session.count for session in part.sessions)):
                free = np.ones(part.envs, bool)
                for session in part.sessions:
                    free[session.first - part.first :][: session.count] = False
                for at in range(part.envs - count + 1):
                    if free[at : at + count].all():
                        return part, part.first + at
            raise Taken("room", f"no {count} environments are free, of {self.plan.envs}")
        for part in self.parts:
            if part.first <= first and first + count <= part.first + part.envs:
                for session in part.sessions:
                    if first < session.first + session.count and session.first < first + count:
                        raise Taken("there", f"{session.environments()} are another client's")
                return part, first
        ranges = ", ".join(f"{part.first} to {part.first + part.envs - 1}" for part in self.parts)
        raise Taken("room", f"environments {first} to {first + count - 1} are not in one of {ranges}")

    def _infer(self, which: int) -> None:
        """All that an inference thread does. Whatever ends it before its time is the run's failure."""
        try:
            with jax.default_device(self.parts[which].device):
                _Inference(self, self.parts[which]).run()
        except BaseException:
            self._failure = f"inference {which} died:\n{traceback.format_exc()}"
            self.parts[which].batcher.close()


class _Inference:
    """An inference thread's table, its chunk half full, and how far its rows are."""

    def __init__(self, threads: Threads, part: Part) -> None:
        self.threads, self.part, self.plan = threads, part, threads.plan
        self.compiled = threads._compiled[part.device]
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
        trace = self.threads.trace
        while not self.threads._stopping:
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
            while not self.threads._stopping:
                try:
                    self.threads.ready.put(item, timeout=CHECK)
                    break
                except queue.Full:
                    continue
        params, _ = self.threads.latest[self.part.device]
        self.chunk, self.filled, self.told = self.compiled.chunk(params), 0, []

    def _reset(self, params: Params, session: Session) -> None:
        rows = self._rows(session)
        size = next(size for size in self.sizes if size >= len(rows))
        lives = np.full(size, session.life, np.int32)
        padded = self._padded(rows, size, self.part.envs)
        self.table = self.compiled.reset[size](params, self.key, self.table, padded, lives)
        self.t[rows] = 0
        session.fresh = False

    def _rows(self, session: Session) -> np.ndarray:
        return np.arange(session.first - self.part.first, session.first - self.part.first + session.count)

    @staticmethod
    def _padded(values: np.ndarray, size: int, beyond: int) -> np.ndarray:
        padded = np.full(size, beyond, np.int32)
        padded[: len(values)] = values
        return padded


def _compiled(unit: Seed, spec: Spec, params: Params, plan: Plan, device: Any) -> Compiled:
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
