"""Environments that fail: their faults under one name, and how often they may be made anew."""

import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from boonta.core import nests
from boonta.core.host import Batch
from boonta.core.types import PyTree, TimeStep

OURS = str(Path(__file__).resolve().parents[1])


class Broken(RuntimeError):
    """A batch of environments failed; it may be made anew."""


class Unclosed(RuntimeError):
    """Environments whose `close` raised; the message says what."""


class Budget:
    """How often environments may fail, over all threads, before the run does.

    Args:
        most: so often.
    """

    def __init__(self, most: int) -> None:
        self.most, self.spent = most, 0
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def spend(self, who: str, error: Broken) -> None:
        """Count a failure that can be borne.

        Raises:
            Broken: the error given, where it cannot.
        """
        with self._lock:
            if self.spent == self.most:
                raise error
            self.spent += 1
            self._told.put(f"environments of {who} failed and are made anew ({self.spent} of {self.most}): {error}")

    def tell(self, notice: str) -> None:
        """Say something else about environments."""
        self._told.put(notice)

    def told(self) -> list[str]:
        """What has happened since the last call and must be told."""
        return [self._told.get() for _ in range(self._told.qsize())]


class Guard:
    """A batch of environments whose faults, whatever they are, come as Broken; closed at the end.

    Args:
        make: the batch.
        finite: whether an observation or reward that is not finite counts as a fault.
        tell: takes what went wrong in closing, which is no fault.

    Raises:
        Broken: it could not be made, reset or stepped.
    """

    def __init__(self, make: Callable[[], Batch], finite: bool, tell: Callable[[str], None]) -> None:
        self.batch: Batch = _translated(make)
        self.finite, self.tell = finite, tell

    def reset(self) -> TimeStep:
        """As the batch's."""
        return self._checked(_translated(self.batch.reset))

    def step(self, action: np.ndarray) -> TimeStep:
        """As the batch's."""
        return self._checked(_translated(self.batch.step, action))

    def _checked(self, timestep: TimeStep) -> TimeStep:
        if self.finite:
            for name, leaf in (*_named(timestep.observation), ("reward", timestep.reward)):
                if not np.isfinite(leaf).all():
                    which = int(np.argmin(np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)))
                    raise Broken(f"{name} of environment {which} of this batch is not finite")
        return timestep

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.batch.close()
        except Exception as error:
            known = isinstance(error, Unclosed)
            self.tell(str(error) if known else f"environments could not be closed: {type(error).__name__}: {error}")


def _named(observation: PyTree) -> list[tuple[str, Any]]:
    """The floating-point arrays of an observation with their names."""
    leaves = nests.named({"observation": observation})
    return [(name, leaf) for name, leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]


def _translated(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        ours = where.filename.startswith(OURS)  # what says itself all that there is to say
        place = "" if ours else f" ({where.filename}, line {where.lineno})"
        raise Broken(f"{type(error).__name__}: {error}{place}") from error
