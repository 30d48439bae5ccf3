"""What is fixed about an environment, for those as well who have no JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from boonta.core.types import Array, PyTree, TimeStep


@dataclass(frozen=True)
class Shape:
    """Of an array that is not there; as jax.ShapeDtypeStruct, which will do in its place."""

    shape: tuple[int, ...]
    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))


class Discrete(NamedTuple):
    """Actions 0 ... n-1, an int32 scalar."""

    n: int

    def zero(self) -> np.ndarray:
        """The action reported at FIRST."""
        return np.zeros((), np.int32)


class Continuous(NamedTuple):
    """Real actions, float32 of `shape`, between `low` and `high` (arrays of that shape)."""

    shape: tuple[int, ...]
    low: np.ndarray
    high: np.ndarray

    def zero(self) -> np.ndarray:
        """The action reported at FIRST."""
        return np.zeros(self.shape, np.float32)

    def scale(self, unit: Array) -> Array:
        """An action [..., *shape] from units of half the box, [..., d]; unbounded dimensions keep their units."""
        middle, half = self._box()
        scaled = middle + half * unit.reshape(*unit.shape[:-1], *self.shape)  # type: ignore[operator]
        return scaled.astype(np.float32)  # type: ignore[return-value]

    def unit(self, action: Array) -> Array:
        """The inverse of `scale`: [..., *shape] -> [..., d]."""
        middle, half = self._box()
        units = (action - middle) / np.where(half > 0, half, np.float32(1.0))
        return units.reshape(*units.shape[: units.ndim - len(self.shape)], -1)

    def _box(self) -> tuple[np.ndarray, np.ndarray]:
        """Its middle, and half its width; 0 and 1 where it has no bounds."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        return (low + high) / 2, (high - low) / 2


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
