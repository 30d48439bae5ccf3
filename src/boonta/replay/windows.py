"""Which pieces a window is made of, and where in them: arithmetic shared by replay on devices and on the host.

A piece has U steps. Windows of L steps, and the time step after them, begin every P steps, K = U / P in each piece. All
K windows of a piece are complete when it and the next `pieces - 1` of its environment and life are there.
"""

from typing import Any, NamedTuple

from boonta.core.agent import Experience


class Windows(NamedTuple):
    """Sizes.

    Attributes:
        length: L, steps of a window.
        period: P, steps between the beginnings of windows.
        unroll: U, steps of a piece.
        each: K, windows that begin in a piece.
        pieces: consecutive pieces that the windows of the first of them need.
    """

    length: int
    period: int
    unroll: int
    each: int
    pieces: int


def windows(experience: Experience) -> Windows:
    """The sizes that a learner's wish for experience implies.

    Raises:
        ValueError: windows that do not begin every period, or more asked for than are kept.
    """
    length = experience.length
    period = experience.period or length
    unroll = experience.unroll or period
    if unroll % period:
        raise ValueError(f"experience.unroll must be a multiple of experience.period, got {unroll} and {period}")
    if experience.minimum > experience.capacity > 0:
        raise ValueError(
            f"agent.minimum must be at most agent.capacity, or learning never begins; got {experience.minimum} and "
            f"{experience.capacity}"
        )
    return Windows(length, period, unroll, unroll // period, (unroll - period + length) // unroll + 1)


def pace(sizes: Windows, minimum: int, batch: int, ratio: float) -> tuple[int, float]:
    """Environment steps until there is the minimum to learn from, and for each sample of a batch from then on."""
    return -(-minimum // sizes.each) * sizes.unroll, batch / ratio / sizes.each * sizes.unroll


def steps(sizes: Windows, begin: Any, count: int, arange: Any) -> tuple[Any, Any]:
    """Where the steps of windows lie.

    Args:
        sizes: Windows.
        begin: int [B], the step of its first piece where a window begins.
        count: steps from there on.
        arange: of NumPy or JAX.

    Returns:
        Which piece of the window's chain, and which step of that, int [B, count] both.
    """
    at = begin[:, None] + arange(count)
    return at // sizes.unroll, at % sizes.unroll
