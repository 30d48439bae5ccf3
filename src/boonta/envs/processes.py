"""Parts of a batch, each in a process of its own that shares memory and may die."""

import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import shared_memory
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from boonta.core import host, nests, own_modules, signals
from boonta.core.faults import Unclosed
from boonta.core.host import Workers
from boonta.core.own_modules import no_modules_from_here
from boonta.core.settings import Refused
from boonta.core.spec import Spec
from boonta.core.types import PyTree, TimeStep
from boonta.envs.parts import CLOSING, Died, Part, slices, view

SHARED = "/dev/shm"  # where Linux keeps shared memory that has a name


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
        self.slices = slices(len(seeds), workers.count)
        shared = host.empty(spec, len(seeds))
        actions = np.zeros_like(shared.action)
        with no_modules_from_here():  # memory may start a process that looks after it
            self.memory: shared_memory.SharedMemory | None = _reserved(spec, len(seeds))
        self._named = True
        self._idle = False  # whether no worker owes an answer
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
                with signals.held(), no_modules_from_here():
                    process.start()
                self.processes.append(process)
                theirs.close()
            self._answers()
            self.memory.unlink()  # all have it; without a name nothing is left of it, however this process ends
            self._named = False
        except BaseException:
            with suppress(Unclosed):  # what went wrong before says more
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
        unclosed = self._closed()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(self.timeout)
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []
        if self.memory is not None:
            del self.out, self.actions
            if self._named:
                self.memory.unlink()
            with suppress(BufferError):  # somebody still looks at a time step; the memory goes with it
                self.memory.close()
            self.memory = None
        if unclosed:
            raise Unclosed(unclosed)

    def _closed(self) -> str:
        """Let those that still answer close their environments; what the first that could not says of it."""
        asked, told = [], ""
        for pipe in self.pipes if self._idle else ():
            with suppress(OSError):  # it died
                pipe.send("close")
                asked.append(pipe)
        deadline = time.monotonic() + min(self.timeout, CLOSING)
        for pipe in asked:
            with suppress(EOFError, OSError):
                if pipe.poll(max(deadline - time.monotonic(), 0.0)):
                    told = told or pipe.recv()
        return told

    def _ask(self, what: str) -> TimeStep:
        for pipe in self.pipes:
            try:
                pipe.send(what)
            except OSError:
                break  # it died; the answer says how
        self._answers()
        return self.out

    def _answers(self) -> None:
        self._idle = False
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
                    named = f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
                    raise Died(f"environment worker {i} ended with exit code {code}{named}") from None
                if answer:
                    raise Died(f"environment worker {i} raised:\n{answer}")
                del waiting[i]
        self._idle = True


def _work(
    pipe: Connection, name: str, spec: Spec, count: int, one: slice, part: Callable[[TimeStep], host.Batch]
) -> None:
    """The life of a worker process: an empty answer is well, a text is a traceback."""
    # A terminal, or a cluster, sends these to all processes of a run; the parent still needs this one until it has
    # saved, and then kills it. Without a parent the pipe ends.
    for number in signals.ENDING:
        signal.signal(number, signal.SIG_IGN)
    signals.hear()
    own_modules.started()
    memory = shared_memory.SharedMemory(name=name)
    try:
        shared = host.empty(spec, count)
        out, actions = _laid_out((shared, np.zeros_like(shared.action)), memory)
        batch = part(view(out, one))
        pipe.send("")
        while (asked := pipe.recv()) != "close":
            if asked == "reset":
                batch.reset()
            else:
                batch.step(actions[one])
            pipe.send("")
        told = ""
        try:
            batch.close()
        except Unclosed as error:
            told = str(error)
        sys.stdout.flush()
        pipe.send(told)
    except EOFError:
        pass  # the parent is gone
    except BaseException:
        with suppress(OSError):  # there may be no parent any more
            pipe.send(traceback.format_exc())


def lacking(spec: Spec, count: int) -> str:
    """What is to be said where there is no shared memory for so many environments; nothing where there is."""
    size = _size(spec, count)
    there = shutil.disk_usage(SHARED).free if os.path.isdir(SHARED) else size
    if size <= there:
        return ""
    return (
        f"{spec.name}: the time steps of {count} environments need {size:,} bytes of shared memory, and {SHARED} has "
        f"{there:,}; make it larger (docker run --shm-size=1g), or take architecture.workers=threads"
    )


def _reserved(spec: Spec, count: int) -> shared_memory.SharedMemory:
    """Shared memory all of which is there: what is missing would end the process when it is written (SIGBUS).

    Raises:
        Refused: there is too little.
    """
    size = _size(spec, count)
    memory = shared_memory.SharedMemory(create=True, size=size)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(memory._fd, 0, size)  # type: ignore[attr-defined]
    except OSError as error:
        memory.unlink()
        memory.close()
        raise Refused(lacking(spec, count) or f"{spec.name}: {size:,} bytes of {SHARED} are not to be had") from error
    return memory


def _size(spec: Spec, count: int) -> int:
    """Bytes of the time steps and actions of so many environments."""
    shared = host.empty(spec, count)
    return sum(_padded(leaf) for leaf in nests.leaves((shared, np.zeros_like(shared.action))))


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

    return nests.mapped(place, example)
