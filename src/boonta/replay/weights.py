"""Drawing in proportion to weights that change, in the host's memory: the twin of `sums`, changed in place."""

import numpy as np

WIDTH = 32  # children of a node


class Weights:
    """Weights of `size` places, 0 at first, and a sum tree over them.

    Args:
        size: places.
        sums: whether `total` and `find` will be asked for.
    """

    def __init__(self, size: int, sums: bool = True) -> None:
        self._size, self._levels = size, list[np.ndarray]()
        while not self._levels or (sums and size > 1):
            size = -(-size // WIDTH)
            self._levels.append(np.zeros((size, WIDTH)))

    def at(self, places: np.ndarray) -> np.ndarray:
        """float64 [K], the weights at places int [K]."""
        return self._levels[0].reshape(-1)[places]

    def put(self, places: np.ndarray, weights: np.ndarray | float) -> None:
        """Set the weights at places int [K]."""
        self._levels[0].reshape(-1)[places] = weights
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            places = np.unique(places // WIDTH)
            above.reshape(-1)[places] = level[places].sum(axis=1)

    def all(self) -> np.ndarray:
        """float64 [size], of every place; not a copy."""
        return self._levels[0].reshape(-1)[: self._size]

    def total(self) -> float:
        """The sum of all."""
        return float(self._levels[-1].sum())

    def find(self, shares: np.ndarray) -> np.ndarray:
        """The places, int [K], where the cumulative sum reaches these shares of the total, in [0, 1)."""
        row, left = np.zeros(len(shares), np.int64), shares * self.total()
        for level in reversed(self._levels):
            weights = level[row]
            ends = np.cumsum(weights, axis=1)
            beyond = (ends > left[:, None]) & (weights > 0)
            last = WIDTH - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)  # rounding must not choose a weight of 0
            child = np.where(beyond.any(axis=1), np.argmax(beyond, axis=1), last)
            left = left - np.take_along_axis(ends - weights, child[:, None], 1)[:, 0]
            row = row * WIDTH + child
        return row
