"""What every replay on a device offers."""

from collections.abc import Callable
from typing import NamedTuple

from boonta.core.types import Array, Ids, Key, PyTree, Sample, Trajectory

SAMPLERS = ("uniform", "prioritized", "ranked")
LEAST = 1e-6  # priority, so that what is there can be told from what is not


class Renewal(NamedTuple):
    """Acting again on stored pieces of U steps, whose extras are then replaced.

    Attributes:
        past: (state, key, n) -> (places int32 [n], Trajectory [n, ...]), each piece as likely, with the time steps
            [n, U, ...] that were acted on. Consumes the key.
        renew: (state, places [n], extras [n, U, ...], version) -> (state, Ids [K] of the windows that begin there).
        share: state -> float32 [], the share of the pieces that has been renewed.
    """

    past: Callable[[PyTree, Key, int], tuple[Array, Trajectory]]
    renew: Callable[[PyTree, Array, PyTree, Array], tuple[PyTree, Ids]]
    share: Callable[[PyTree], Array]


class Replay(NamedTuple):
    """A store of experience as pure functions over fixed shapes.

    What goes in are pieces: trajectories of as many steps as one unroll has. What comes out are windows of `length`
    steps that begin every `period` steps, and may be a piece, part of one, or several of one environment and life.

    Attributes:
        init: one piece, or its shapes -> the empty state.
        insert: (state, Trajectory [E, ...]) -> (state, Ids [K]): of the windows that are complete with these pieces,
            as likely to be drawn as the likeliest so far; places below 0 stand for none.
        window: (state, Ids [K]) -> Trajectory [K, ...].
        sample: (state, key) -> (state, Sample [B, ...]). Consumes the key.
        revise: (state, Ids [K], priorities [K]) -> state; windows that are gone, and priorities that are not finite,
            are passed over.
        size: state -> int32 [], windows that can be drawn; of a full replay its capacity at least.
        renewal: Renewal, or None where nothing stays.
    """

    init: Callable[[Trajectory], PyTree]
    insert: Callable[[PyTree, Trajectory], tuple[PyTree, Ids]]
    window: Callable[[PyTree, Ids], Trajectory]
    sample: Callable[[PyTree, Key], tuple[PyTree, Sample]]
    revise: Callable[[PyTree, Ids, Array], PyTree]
    size: Callable[[PyTree], Array]
    renewal: Renewal | None = None
