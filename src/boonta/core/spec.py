"""What is fixed about an environment, for those as well who have no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from boonta.core.types import Array, PyTree, TimeStep

UNBOUNDED = 1e15  # no action is meant to be so large


@dataclass(frozen=True)
class Shape:
    """Of an array that is not there; as jax.ShapeDtypeStruct, which will do in its place.

    Attributes:
        shape: its axes.
        dtype: a NumPy dtype.
        bounds: the lowest and the highest value of a uint8, numbers, or nested tuples with one for each entry; None for
            0 and 255.
        categories: int32 alone: how many values each entry may take, from 0, a number or nested tuples; networks see
            such an entry as one of so many, not as a quantity. None for quantities.
    """

    shape: tuple[int, ...]
    dtype: Any
    bounds: tuple[Any, Any] | None = None
    categories: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))


class Discrete(NamedTuple):
    """Actions 0 ... n-1, an int32 scalar.

    Attributes:
        n: how many.
        start: what the environment calls the first of them.
    """

    n: int
    start: int = 0

    def zero(self) -> np.ndarray:
        """The action reported at FIRST."""
        return np.zeros((), np.int32)


class Continuous(NamedTuple):
    """Real actions, float32 of `shape`.

    Attributes:
        shape: its axes.
        low: float32 array of that shape; below -1e15, as -inf is, where there is no bound.
        high: likewise.
        span: how far agents reach where there is no bound: from -span to span, or so far from the one bound there is.
    """

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray
    span: float = 1.0

    def zero(self) -> np.ndarray:
        """The action reported at FIRST."""
        return np.zeros(self.shape, np.float32)

    def bounded(self) -> np.ndarray:
        """bool of `shape`, where there are both bounds."""
        return _known(self.low) & _known(self.high)

    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest that agents reach, float32 of `shape`: the bounds where there are any."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        least = np.where(_known(low), low, np.where(_known(high), high - self.span, -self.span))
        most = np.where(_known(high), high, np.where(_known(low), low + self.span, self.span))
        return least.astype(np.float32), most.astype(np.float32)

    def scale(self, unit: Array) -> Array:
        """An action [..., *shape] from units of half the reach, [..., d]."""
        middle, half = self._box()
        scaled = middle + half * unit.reshape(*unit.shape[:-1], *self.shape)  # type: ignore[operator]
        return scaled.astype(np.float32)  # type: ignore[return-value]

    def unit(self, action: Array) -> Array:
        """The inverse of `scale`: [..., *shape] -> [..., d]."""
        middle, half = self._box()
        units = (action - middle) / np.where(half > 0, half, np.float32(1.0))
        return units.reshape(*units.shape[: units.ndim - len(self.shape)], -1)

    def _box(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle of the reach, and half its width."""
        low, high = self.reach()
        return (low + high) / 2, (high - low) / 2


def _known(bound: np.ndarray) -> np.ndarray:
    """Where there is a bound; the largest float32, too, stands for none."""
    return np.abs(bound) < UNBOUNDED


class Spec(NamedTuple):
    """The static facts of an environment.

    Attributes:
        name: what messages call it.
        observation: pytree of shapes with dtypes: `Shape`, or jax.ShapeDtypeStruct.
        action: Discrete or Continuous.
        frames_per_step: simulator frames in one step (the action repeat).
        stack: frames that the last axis of the observation, a single array, holds: the newest last, zeros for those
            before an episode's first. Replay stores each of them once. 1 for what is no such stack.
        model: (state, action, key) -> (state, TimeStep), the environment's own step where agents may plan with it, of
            states as the observation's `state` shows them; None elsewhere.
    """

    name: str
    observation: PyTree
    action: Discrete | Continuous
    frames_per_step: int = 1
    stack: int = 1
    model: Callable[[PyTree, Array, Array], tuple[PyTree, TimeStep]] | None = None
