"""Stacks of what was seen and done last, for agents whose network has no memory of its own (Mnih et al. 2015).

One function, `follow`, makes them step by step while acting and `follow_all` runs it over what is stored, so that
learning sees what acting saw.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.types import Array, PyTree

NOTHING = -1  # the action before the first


class History(NamedTuple):
    """What one environment's agent remembers between two steps.

    Attributes:
        frames: [L-1, ...], the latest observations, the newest last; zeros before an episode's first.
        actions: int32 [L-1], those that led to them; `NOTHING` before an episode's first.
    """

    frames: Array
    actions: Array


def empty(shape: tuple[int, ...], dtype: PyTree, length: int) -> History:
    """Before the first step: a history of L frames of this shape and dtype."""
    return History(jnp.zeros((length - 1, *shape), dtype), jnp.full(length - 1, NOTHING, jnp.int32))


def follow(history: History, frame: Array, action: Array, first: Array) -> tuple[History, History]:
    """One step of one environment.

    Args:
        history: what is remembered.
        frame: [...], o_t.
        action: int32 [], a_{t-1}.
        first: bool [], whether an episode begins here.

    Returns:
        What is remembered now, and the stack: frames o_{t-L+1} ... o_t, actions a_{t-L} ... a_{t-1}.
    """
    begun = empty(frame.shape, frame.dtype, len(history.actions) + 1)
    before = jax.tree.map(lambda new, old: jnp.where(first, new, old), begun, history)
    frames = jnp.concatenate([before.frames, frame[None]])
    actions = jnp.append(before.actions, jnp.where(first, NOTHING, action))
    return History(frames[1:], actions[1:]), History(frames, actions)


def follow_all(frames: Array, actions: Array, first: Array, length: int) -> History:
    """The stacks of all steps of one sequence.

    Args:
        frames: [T, ...].
        actions: int32 [T], that led to each.
        first: bool [T].
        length: L; the stacks of the first L - 1 steps lack what was before the sequence.

    Returns:
        History of frames [T, L, ...] and actions [T, L].
    """
    start = empty(frames.shape[1:], frames.dtype, length)
    return jax.lax.scan(lambda history, x: follow(history, *x), start, (frames, actions, first))[1]


def planes(stack: History, actions: int) -> Array:
    """A stack as one image or one vector (MooZi, section 5.2.6).

    Args:
        stack: frames float32 [L, H, W, C] or [L, d], actions int32 [L].
        actions: A, how many there are; `NOTHING` is a plane of zeros.

    Returns:
        [H, W, L (C + A)] or [L (d + A)]: the frames, then each action as planes of 1 / A.
    """
    frames = jnp.moveaxis(stack.frames, 0, -2)
    frames = frames.reshape(*frames.shape[:-2], -1)
    one_hot = (jax.nn.one_hot(stack.actions, actions, dtype=jnp.float32) / actions).reshape(-1)
    one_hot = jnp.broadcast_to(one_hot, (*frames.shape[:-1], len(one_hot)))
    return jnp.concatenate([frames, one_hot], axis=-1)
