"""Parts of a batch, each in a process of its own that shares memory and may die."""

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import shared_memory
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from boonta.core import host, nests, signals
from boonta.core.host import Workers
from boonta.core.spec import Spec
from boonta.core.types import PyTree, TimeStep
from boonta.envs.parts import Died, Part, slices, view


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
        size = sum(_padded(leaf) for leaf in nests.leaves((shared, actions)))
        self.memory: shared_memory.SharedMemory | None = shared_memory.SharedMemory(create=True, size=size)
        self._named = True
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
                with signals.held():
                    process.start()
                self.processes.append(process)
                theirs.close()
            self._answers()
            self.memory.unlink()  # all have it; without a name nothing is left of it, however this process ends
            self._named = False
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
            if self._named:
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
                    named = f" ({signal.Signals(-code).name})" if code is not None and code < 0 else ""
                    raise Died(f"environment worker {i} ended with exit code {code}{named}") from None
                if answer:
                    raise Died(f"environment worker {i} raised:\n{answer}")
                del waiting[i]


def _work(
    pipe: Connection, name: str, spec: Spec, count: int, one: slice, part: Callable[[TimeStep], host.Batch]
) -> None:
    """The life of a worker process: an empty answer is well, a text is a traceback."""
    # A terminal, or a cluster, sends these to all processes of a run; the parent still needs this one until it has
    # saved, and then kills it. Without a parent the pipe ends.
    for number in signals.ENDING:
        signal.signal(number, signal.SIG_IGN)
    signals.hear()
    memory = shared_memory.SharedMemory(name=name)
    try:
        shared = host.empty(spec, count)
        out, actions = _laid_out((shared, np.zeros_like(shared.action)), memory)
        batch = part(view(out, one))
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
        with suppress(OSError):  # there may be no parent any more
            pipe.send(traceback.format_exc())


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
