"""What every replay offers, wherever it lives."""

from collections.abc import Callable
from typing import NamedTuple

from boonta.core.types import Array, Key, PyTree, Sample, Trajectory


class Replay(NamedTuple):
    """A store of trajectories as pure functions over fixed shapes.

    Attributes:
        init: one trajectory, or its shapes -> the empty state.
        insert: (state, Trajectory [E, ...], priorities [E]) -> state.
        sample: (state, key) -> (state, Sample [B, ...]). Consumes the key.
        revise: (state, ids [B], priorities [B]) -> state; ids whose trajectory is gone are passed over.
    """

    init: Callable[[Trajectory], PyTree]
    insert: Callable[[PyTree, Trajectory, Array], PyTree]
    sample: Callable[[PyTree, Key], tuple[PyTree, Sample]]
    revise: Callable[[PyTree, Array, Array], PyTree]
