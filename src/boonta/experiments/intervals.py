"""When something is due in a run."""

from collections.abc import Callable
from typing import NamedTuple


class Interval(NamedTuple):
    """What is due again and again.

    Attributes:
        at: iterations -> environment steps behind them.
        steps: it is due with the iteration in which another multiple of so many environment steps is reached; 0 for
            `iterations`.
        iterations: it is due after so many.
    """

    at: Callable[[int], int]
    steps: int
    iterations: int

    def passed(self, before: int, now: int) -> bool:
        """Whether it is due with an iteration after the one, up to the other."""
        return self._count(now) > self._count(before)

    def following(self, done: int) -> int:
        """The first iteration after `done` with which it is due."""
        if not self.steps:
            return (done // self.iterations + 1) * self.iterations
        wanted = self._count(done) + 1
        low, step = done, 1
        while self._count(low + step) < wanted:
            low, step = low + step, 2 * step
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._count(middle) < wanted else (low, middle)
        return high

    def _count(self, iterations: int) -> int:
        return self.at(iterations) // self.steps if self.steps else iterations // self.iterations
