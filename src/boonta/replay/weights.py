"""Drawing in proportion to weights that change, in the host's memory: the twin of `sums`, changed in place."""

import numpy as np


class Weights:
    """Weights of `size` places, 0 at first, and a sum tree of two levels over them.

    Args:
        size: places.
    """

    def __init__(self, size: int) -> None:
        width = 1
        while width * width < size:
            width *= 2
        self._rows = np.zeros((-(-size // width), width))
        self._totals = np.zeros(len(self._rows))

    def at(self, places: np.ndarray) -> np.ndarray:
        """float64 [K], the weights at places int [K]."""
        return self._rows.reshape(-1)[places]

    def put(self, places: np.ndarray, weights: np.ndarray | float) -> None:
        """Set the weights at places int [K]."""
        self._rows.reshape(-1)[places] = weights
        rows = np.unique(places // self._rows.shape[1])
        self._totals[rows] = self._rows[rows].sum(axis=1)

    def all(self) -> np.ndarray:
        """float64 [size or more], of every place; not a copy."""
        return self._rows.reshape(-1)

    def total(self) -> float:
        """The sum of all."""
        return float(self._totals.sum())

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The places, int [K], where the cumulative sum reaches these shares of the total, in [0, 1)."""
        ends = np.cumsum(self._totals)
        wanted = shares * ends[-1]
        row = np.minimum(np.searchsorted(ends, wanted, side="right"), np.flatnonzero(self._totals)[-1])
        weights = self._rows[row]
        left = wanted - (ends - self._totals)[row]
        beyond = (np.cumsum(weights, axis=1) > left[:, None]) & (weights > 0)
        width = weights.shape[1]
        last = width - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)  # rounding must not choose a weight of 0
        return row * width + np.where(beyond.any(axis=1), np.argmax(beyond, axis=1), last)
