"""Batches of Python environments: in a row, split over threads, or over processes that share memory and may die."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from multiprocessing import shared_memory
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import jax
import numpy as np

from boonta.core import host
from boonta.core.environment import Continuous, Spec
from boonta.core.host import Workers
from boonta.core.types import PyTree, TimeStep

Part = Callable[[Sequence[int], TimeStep], host.Batch]  # environments of these seeds, which write into these arrays

T = TypeVar("T")

TRIAL = 60.0  # seconds that the first environment of a run may take to be made
PROBE_SECONDS = 0.2  # of stepping, in a measurement
HANDING = 200e-6  # seconds that a step costs more where others make it: to a process or a thread, and back
CLOSING = 5.0  # seconds that closing waits for a thread
CHEAP = 1e-3  # seconds of a batch's step that are not worth dividing: the other cores have acting and learning to do


class Died(RuntimeError):
    """A worker raised, ended, or did not answer in time; the message says which."""


def spread(spec: Spec, part: Part) -> host.Host:
    """Environments that a part steps one after the other, spread over workers as asked."""

    def make(indices: np.ndarray, seed: int, life: int, workers: Workers) -> host.Batch:
        seeds = [host.seed_of(seed, int(i), life) for i in indices]
        workers, _ = choose(len(seeds), workers)
        if workers.kind == "threads":
            return Threads(spec, part, seeds, workers)
        if workers.kind == "processes":
            return Processes(spec, part, seeds, workers)
        return part(seeds, host.empty(spec, len(seeds)))

    def choose(count: int, workers: Workers) -> tuple[Workers, str]:
        workers = workers._replace(count=min(workers.count or os.cpu_count() or 1, count))
        if workers.kind == "processes" and (why_not := _stays(part)):
            raise ValueError(
                f"{spec.name} cannot travel to a process ({why_not}): its factory must be a function that can be "
                "imported by its name; or take architecture.workers=threads or serial"
            )
        if workers.kind != "auto":
            return workers, "as asked"
        alone, together = (_probe(spec, part, threads, workers.timeout) for threads in (1, 2))
        told = f"a step takes {alone * 1e6:.0f} µs, two in two threads {together * 1e6:.0f} µs"
        serial = alone * count
        if workers.count == 1 or serial < CHEAP:
            return workers._replace(kind="serial"), told
        threads = serial / min(2 * alone / together, workers.count) + HANDING
        processes = serial / workers.count + HANDING
        kinds = {"serial": serial, "threads": threads} | ({} if _stays(part) else {"processes": processes})
        return workers._replace(kind=min(kinds, key=kinds.__getitem__)), told

    return host.Host(spec, make, choose)


def within(seconds: float, what: Callable[[], T]) -> T:
    """What it returns, if it does so in time; it goes on in a thread of its own if not.

    Raises:
        TimeoutError: it did not.
        BaseException: what it raised.
    """
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((what(), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=work, name="an environment is tried", daemon=True).start()
    try:
        value, error = answer.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error:
        raise error
    return value


def inward(spec: Spec, action: np.ndarray) -> Any:
    """One environment's action as other libraries take it: inside its bounds, or an int."""
    space = spec.action
    return np.clip(action, space.low, space.high) if isinstance(space, Continuous) else int(action)


def _stays(part: Part) -> str:
    """Why it cannot travel to a process; nothing where it can."""
    try:
        pickle.dumps(part)
    except Exception as error:  # each type that cannot has its own
        return str(error)
    return ""


def _probe(spec: Spec, part: Part, threads: int, timeout: float) -> float:
    """Seconds of a step, each of `threads` threads stepping an environment of its own with random actions.

    Raises:
        ValueError: the environment raised, or did not answer in time.
    """
    generator = np.random.default_rng(0)
    seconds = []

    def go(part: host.Batch) -> None:
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < PROBE_SECONDS:
            part.step(host.random_actions(spec, generator, 1))
            steps += 1
        seconds.append((time.perf_counter() - begin) / steps)

    try:
        batch = Threads(spec, part, range(threads), Workers("threads", threads, timeout))
        try:
            batch.reset()
            batch.each(lambda i, part: go(part))
        finally:
            batch.close()
    except Died as error:
        raise ValueError(f"{spec.name} failed when it was tried: {error}") from error
    return max(seconds)


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
        self.slices = _slices(len(seeds), workers.count)
        self.parts: dict[int, host.Batch] = {}
        self.asked: list[queue.SimpleQueue[Callable[[], Any] | None]] = [queue.SimpleQueue() for _ in self.slices]
        self.answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._work, args=(i,), name=f"environments {i}", daemon=True)
            for i in range(len(self.slices))
        ]
        for thread in self.threads:
            thread.start()

        def begin(i: int) -> None:
            self.parts[i] = part(seeds[self.slices[i]], _view(self.out, self.slices[i]))

        try:
            self._all(begin)
        except BaseException:
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
            with suppress(Exception):  # it may have failed before
                self.parts[i].close()


class Processes:
    """Parts of a batch, each in a process of its own; time steps and actions lie in shared memory.

    Args:
        spec: Spec.
        part: makes a part; it travels to the process by pickle, so it must be importable there.
        seeds: one for each environment.
        workers: how many processes, and how long an answer may take.

    Raises:
        Died: a worker raised, ended or did not answer; from `reset` and `step` as well. The batch is then of no use.
    """

    def __init__(self, spec: Spec, part: Part, seeds: Sequence[int], workers: Workers) -> None:
        self.spec, self.timeout = spec, workers.timeout
        self.slices = _slices(len(seeds), workers.count)
        shared = host.empty(spec, len(seeds))
        actions = np.zeros_like(shared.action)
        size = sum(_padded(leaf) for leaf in jax.tree.leaves((shared, actions)))
        self.memory: shared_memory.SharedMemory | None = shared_memory.SharedMemory(create=True, size=size)
        laid_out: tuple[TimeStep, np.ndarray] = _laid_out((shared, actions), self.memory)
        self.out, self.actions = laid_out
        context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        try:
            for one in self.slices:
                ours, theirs = context.Pipe()
                self.pipes.append(ours)
                life = (theirs, self.memory.name, spec, len(seeds), one, partial(part, seeds[one]))
                process = context.Process(target=_work, args=life, daemon=True)
                process.start()
                self.processes.append(process)
                theirs.close()
            self._answers()
        except BaseException:
            self.close()
            raise

    def reset(self) -> TimeStep:
        return self._ask("reset")

    def step(self, action: np.ndarray) -> TimeStep:
        self.actions[...] = action
        return self._ask("step")

    def frame(self) -> np.ndarray:
        raise ValueError(f"{self.spec.name} cannot be drawn where processes step it; use serial workers")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(self.timeout)
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []
        if self.memory is not None:
            del self.out, self.actions
            self.memory.unlink()
            with suppress(BufferError):  # somebody still looks at a time step; the memory goes with it
                self.memory.close()
            self.memory = None

    def _ask(self, what: str) -> TimeStep:
        for pipe in self.pipes:
            try:
                pipe.send(what)
            except OSError:
                break  # it died; the answer says how
        self._answers()
        return self.out

    def _answers(self) -> None:
        waiting = dict(enumerate(self.pipes))
        deadline = time.monotonic() + self.timeout
        while waiting:
            ready = wait(list(waiting.values()), deadline - time.monotonic())
            if not ready:
                raise Died(f"environment worker {min(waiting)} did not answer within {self.timeout:g} s")
            for i, pipe in list(waiting.items()):
                if pipe not in ready:
                    continue
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    self.processes[i].join(1.0)
                    code = self.processes[i].exitcode
                    raise Died(f"environment worker {i} ended with exit code {code}") from None
                if answer:
                    raise Died(f"environment worker {i} raised:\n{answer}")
                del waiting[i]


def _work(
    pipe: Connection, name: str, spec: Spec, count: int, one: slice, part: Callable[[TimeStep], host.Batch]
) -> None:
    """The life of a worker process: an empty answer is well, a text is a traceback."""
    # A terminal, or a cluster, sends these to all processes of a run; the parent still needs this one until it has
    # saved, and then kills it. Without a parent the pipe ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    memory = shared_memory.SharedMemory(name=name)
    try:
        shared = host.empty(spec, count)
        out, actions = _laid_out((shared, np.zeros_like(shared.action)), memory)
        batch = part(_view(out, one))
        pipe.send("")
        while True:
            if pipe.recv() == "reset":
                batch.reset()
            else:
                batch.step(actions[one])
            pipe.send("")
    except EOFError:
        pass  # the parent is gone
    except BaseException:
        pipe.send(traceback.format_exc())


def close_all(environments: list[Any]) -> None:
    """Close and forget all of them, whatever one of them raises; then raise that.

    Raises:
        Exception: what the first that could not be closed raised.
    """
    failures = []
    while environments:
        try:
            environments.pop().close()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _slices(count: int, workers: int) -> list[slice]:
    bounds = np.linspace(0, count, min(workers, count) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def _view(out: TimeStep, one: slice) -> TimeStep:
    return jax.tree.map(lambda x: x[one], out)


def _padded(x: np.ndarray) -> int:
    """Bytes, in whole cache lines."""
    return -(-x.nbytes // 64) * 64


def _laid_out(example: PyTree, memory: shared_memory.SharedMemory) -> PyTree:
    """Arrays like those of `example`, one after the other in shared memory."""
    offset = 0

    def place(x: np.ndarray) -> np.ndarray:
        nonlocal offset
        array = np.ndarray(x.shape, x.dtype, memory.buf, offset)
        offset += _padded(x)
        return array

    return jax.tree.map(place, example)
