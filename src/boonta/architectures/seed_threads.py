"""SEED's clients: whose environments are whose, and the threads that answer them."""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from boonta.architectures.batching import Batcher
from boonta.architectures.seed import Seed
from boonta.architectures.seed_inference import CHECK, Compiled, Inference, Item, Plan, compiled
from boonta.core.spec import Spec
from boonta.core.trace import Trace
from boonta.core.types import Array, Params, TimeStep
from boonta.core.watch import Watch

LIMIT = 10.0  # seconds that an ending run waits for a thread


class Failed(RuntimeError):
    """A thread died, or nothing came; the message says which, with the traceback."""


class Asked(Exception):
    """The run was asked to end while it waited."""


class Taken(Exception):
    """Environments that a client wants are not to be had; `why` is `there` (another's), `room` or `never`."""

    def __init__(self, why: str, message: str) -> None:
        super().__init__(message)
        self.why = why


class Session:
    """A client's environments: rows first ... first + count - 1 of one inference device."""

    def __init__(self, part: "Part", first: int, count: int, life: int, name: str) -> None:
        self.part, self.first, self.count, self.life, self.name = part, first, count, life, name
        self.fresh = True  # its rows are still those of whoever had them before

    def environments(self) -> str:
        """In words."""
        if self.count == 1:
            return f"environment {self.first}"
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
        self.batcher = Batcher(plan.maximum, plan.deadline, self._least)

    def _least(self) -> int:
        """Environments that a batch waits for: no more than there are, and by default those of one client."""
        counts = [session.count for session in self.sessions]
        return min(self.threads.plan.minimum or min(counts, default=1), sum(counts))


class Threads:
    """Sessions, inference threads, and the queue of what they make.

    Args:
        unit: Seed.
        spec: of the environments.
        plan: Plan.
        seed: of the run.
        trace: where spans of time go.
        watch: is told of updates.
    """

    def __init__(self, unit: Seed, spec: Spec, plan: Plan, seed: int, trace: Trace, watch: Watch | None = None) -> None:
        self.unit, self.spec, self.plan, self.seed, self.trace = unit, spec, plan, seed, trace
        self.watch = watch or Watch()
        first = jax.process_index() * plan.envs
        each = plan.envs // len(plan.inference)
        self.parts = [Part(self, device, first + i * each) for i, device in enumerate(plan.inference)]
        self.ready: queue.Queue[Item] = queue.Queue(plan.ahead)
        self.joined = self.dropped = 0
        self.look: Callable[[], None] = lambda: None  # after others that must go on; raises Failed
        self.asked: Callable[[], bool] = lambda: False  # whether the run is to end
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.compiled: dict[Any, Compiled] = {}
        self.latest: dict[Any, tuple[Params, np.ndarray]] = {}
        self._lives = np.full(plan.envs, -1)
        self._base = 0
        self._threads: list[threading.Thread] = []
        self._failure: str | None = None
        self._batched = (0, 0)
        self._refused = (0, "")  # clients since they were last told, and why the last one was
        self.stopping = False
        self._lock = threading.Lock()

    def compile(self, params: Params) -> None:
        """Compile all there is to compile, for parameters like these."""
        params = {name: params[name] for name in self.unit.reads}
        for device in self.plan.inference:
            self.compiled[device] = compiled(self.unit, self.spec, params, self.plan, device)

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
            if not self.stopping:
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
        return f"no experience came for {self.plan.timeout:g} s (architecture.timeout), {whose}"

    def present(self) -> int:
        """Environments of all clients that are here."""
        return sum(session.count for part in self.parts for session in part.sessions)

    def playing(self) -> bool:
        """Whether there is a client that has sent a step."""
        return any(not session.fresh for part in self.parts for session in part.sessions)

    def answered(self) -> int:
        """Steps of environments that were answered so far."""
        return sum(part.batcher.rows for part in self.parts)

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

    def refused(self, why: str) -> None:
        """Count a client that was not let in; there may be very many."""
        with self._lock:
            self._refused = (self._refused[0] + 1, why)

    def told(self) -> list[str]:
        """What has happened since the last call and must be told."""
        with self._lock:
            (count, why), self._refused = self._refused, (0, "")
        refusals = [f"{count} clients were not let in, the last: {why}"] if count else []
        return refusals + [self._notes.get() for _ in range(self._notes.qsize())]

    def stop(self) -> None:
        """End all threads, and let all clients go."""
        self.stopping = True
        for part in self.parts:
            part.batcher.close()
        deadline = time.monotonic() + LIMIT
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _place(self, count: int, first: int) -> tuple[Part, int]:
        """A part with room for so many environments, and where in it. The part with the fewest clients first."""
        if count > self.plan.maximum:
            raise Taken("never", f"at most {self.plan.maximum} environments a client, got {count}")
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
        raise Taken("never", f"environments {first} to {first + count - 1} are not within {ranges}")

    def _infer(self, which: int) -> None:
        """All that an inference thread does. Whatever ends it before its time is the run's failure."""
        try:
            with jax.default_device(self.parts[which].device):
                Inference(self, self.parts[which]).run()
        except BaseException:
            self._failure = f"inference {which} died:\n{traceback.format_exc()}"
            self.parts[which].batcher.close()
