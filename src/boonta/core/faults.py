"""What fails and can be begun anew: the faults of environments under one name, and how often which may be restarted."""

import queue
import random
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boonta.core import nests
from boonta.core.host import Batch
from boonta.core.types import PyTree, TimeStep

HOUR = 3600.0
SOON, LATE = 0.1, 30.0  # seconds before the first restart within an hour, and at most before any
OURS = str(Path(__file__).resolve().parents[1])


class Broken(RuntimeError):
    """A batch of environments failed; it may be made anew."""


class Unclosed(RuntimeError):
    """Environments whose `close` raised; the message says what."""


@contextmanager
def closing(batch: Batch) -> Iterator[Batch]:
    """A batch that is closed afterwards; of environments whose `close` raises, stderr is told and no more."""
    try:
        yield batch
    finally:
        try:
            batch.close()
        except Unclosed as error:
            print(f"boonta: {error}", file=sys.stderr)


class Exhausted(RuntimeError):
    """What a run needs has failed too often; the message says what, why, and how often it may."""


class Restart(NamedTuple):
    """After an incident: the how-manieth within an hour it was, and the seconds to wait before beginning anew."""

    count: int
    delay: float


class Supervisor:
    """How often what a run needs may fail within an hour, over all threads, before the run does.

    What fails again soon is begun anew later and later, and never all at the same moment.

    Args:
        per_hour: incidents that may lie within an hour.
        clock: seconds that never go back.
        chance: from 0 to 1, of the delay.
        setting: the name of the first, for the message.

    Attributes:
        incidents: how many there were in all.
    """

    def __init__(
        self, per_hour: int, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random,
        setting: str = "architecture.restarts",
    ) -> None:  # fmt: skip
        self.per_hour, self.incidents, self._setting = per_hour, 0, setting
        self._clock, self._chance = clock, chance
        self._times: dict[str, deque[float]] = defaultdict(deque)
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def incident(self, who: str, why: object, anew: str = "", of: str = "") -> Restart:
        """Count a failure that can be borne, and tell of it.

        Args:
            who: failed.
            why: in words.
            anew: what becomes of it, to be told; nothing where whoever asks tells it.
            of: what is counted together; by default everything.

        Raises:
            Exhausted: it cannot.
        """
        with self._lock:
            now, times = self._clock(), self._times[of]
            while times and times[0] <= now - HOUR:
                times.popleft()
            if len(times) >= self.per_hour:
                said = f" ({self._setting}={self.per_hour})" if self._setting else ""
                raise Exhausted(f"{who}, after {len(times)} restarts within an hour{said}: {why}")
            times.append(now)
            self.incidents += 1
            if anew:
                self.tell(f"{who} {anew} ({len(times)} of {self.per_hour} within an hour): {why}")
            return Restart(len(times), min(SOON * 2 ** (len(times) - 1), LATE) * (0.5 + 0.5 * self._chance()))

    def tell(self, notice: str) -> None:
        """Say something that a user should know."""
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
