"""Replay that hands every trajectory out exactly once, first in first out: on-policy learning."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.trees import batch_size
from boonta.core.types import Array, Ids, Key, Sample, Trajectory
from boonta.replay.types import Replay


class State(NamedTuple):
    """Trajectory [capacity, ...], and how many were ever written and read (int32)."""

    stored: Trajectory
    written: Array
    read: Array


def once(capacity: int, batch: int) -> Replay:
    """A queue.

    Args:
        capacity: trajectories it holds; whoever inserts more than that without sampling overwrites the oldest.
        batch: trajectories in a sample.

    Raises:
        ValueError: the capacity is not a multiple of the batch.
    """
    if capacity % batch:
        raise ValueError(f"capacity must be a multiple of batch, got {capacity} and {batch}")

    def init(example: Trajectory) -> State:
        stored = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)
        return State(stored, jnp.int32(0), jnp.int32(0))

    def insert(state: State, trajectories: Trajectory) -> tuple[State, Ids]:
        n = batch_size(trajectories)
        if capacity % n:
            raise ValueError(f"capacity must be a multiple of the trajectories inserted, got {capacity} and {n}")
        at = state.written % capacity
        stored = jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new, at, 0), state.stored, trajectories
        )
        return State(stored, state.written + n, state.read), _ids(at, n)

    def window(state: State, ids: Ids) -> Trajectory:
        return jax.tree.map(lambda x: x[ids.place], state.stored)

    def sample(state: State, key: Key) -> tuple[State, Sample]:
        del key
        at = state.read % capacity
        drawn = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, at, batch, 0), state.stored)
        return state._replace(read=state.read + batch), Sample(drawn, jnp.ones(batch, jnp.float32), _ids(at, batch))

    def revise(state: State, ids: Ids, priorities: Array) -> State:
        del ids, priorities
        return state

    return Replay(init, insert, window, sample, revise, lambda state: state.written - state.read)


def _ids(at: Array, count: int) -> Ids:
    place = at + jnp.arange(count, dtype=jnp.int32)
    return Ids(place, jnp.zeros_like(place))
