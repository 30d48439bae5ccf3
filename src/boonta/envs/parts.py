"""Parts of a batch of Python environments, which workers step: what all of them share."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from boonta.core import host, nests
from boonta.core.spec import Continuous, Spec
from boonta.core.types import TimeStep

Part = Callable[[Sequence[int], TimeStep], host.Batch]  # environments of these seeds, which write into these arrays


class Died(RuntimeError):
    """A worker raised, ended, or did not answer in time; the message says which."""


def inward(spec: Spec, action: np.ndarray) -> Any:
    """One environment's action as other libraries take it: inside its bounds, or an int."""
    space = spec.action
    return np.clip(action, space.low, space.high) if isinstance(space, Continuous) else int(action)


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


def slices(count: int, workers: int) -> list[slice]:
    """Which of so many environments each worker has."""
    bounds = np.linspace(0, count, min(workers, count) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def view(out: TimeStep, one: slice) -> TimeStep:
    """A worker's share of the arrays."""
    return nests.mapped(lambda x: x[one], out)
