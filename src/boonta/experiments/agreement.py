"""Signals that ask a run to end, and other things on which several hosts must agree."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from boonta.core import signals
from boonta.core.types import PyTree

PATIENCE = 2.0  # seconds after a first signal in which others of its kind say nothing new


class Interrupted(Exception):
    """A signal asked the run to end; it was saved. `signal` is its number."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


def lost(error: BaseException) -> str | None:
    """What to tell where `error` says that other hosts cannot be reached any more; None for another error."""
    transport = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)  # of which some are ValueErrors
    if jax.process_count() == 1 or not transport:
        return None
    return unreachable(str(error).splitlines()[0])


def unreachable(why: str) -> str:
    """What to tell where that is so."""
    return (
        f"host {jax.process_index()} of {jax.process_count()} could not reach another one, which may have died "
        f"({why}); it ends too, and all go on together with --resume"
    )


def agreed(received: list[int]) -> int:
    """The signal that some host received, 0 for none: hosts stop together or not at all."""
    mine = received[0] if received else 0
    if jax.process_count() == 1:
        return mine
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(mine))))


def together(mine: bool) -> bool:
    """Whether it holds on all hosts."""
    if jax.process_count() == 1:
        return mine
    from jax.experimental import multihost_utils

    return bool(np.all(multihost_utils.process_allgather(np.bool_(mine))))


def meet(where: str) -> None:
    """Wait until all hosts are there."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(where)


def same(mine: int) -> bool:
    """Whether all hosts hold the same number of 32 bits."""
    if jax.process_count() == 1:
        return True
    from jax.experimental import multihost_utils

    return len({*multihost_utils.process_allgather(np.uint32(mine)).tolist()}) == 1


def total(mine: int) -> int:
    """The sum over all hosts."""
    if jax.process_count() == 1:
        return mine
    from jax.experimental import multihost_utils

    return int(np.sum(multihost_utils.process_allgather(np.int32(mine))))


def shared(tree: PyTree) -> PyTree:
    """NumPy arrays as the first host has them, on all hosts."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))


@contextmanager
def received(wake: int = -1) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM is put into the list that this gives.

    A second one, two seconds later or more, ends the process as usual; launchers send several at once.

    Args:
        wake: a descriptor to which the numbers of signals are written at once, also where this thread cannot hear them.
    """
    seen: list[int] = []
    before: dict[int, Any] = {}
    until = math.inf

    def note(number: int, frame: Any) -> None:
        nonlocal until
        if not seen:
            seen.append(number)
            until = time.monotonic() + PATIENCE
        elif time.monotonic() >= until:
            for each, handler in before.items():
                signal.signal(each, handler)
            signal.raise_signal(number)

    try:
        for number in signals.ENDING:
            before[number] = signal.signal(number, note)
        old = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    except ValueError:  # not the main thread: whoever owns that handles signals
        yield seen
        return
    try:
        yield seen
    finally:
        signal.set_wakeup_fd(old, warn_on_full_buffer=False)
        for number, handler in before.items():
            signal.signal(number, handler)
