"""Observations that are stacks of frames, stored so that every frame is there once.

An environment says with `Spec.stack` that the last axis of its observation holds so many frames, the newest last, and
zeros in place of those before an episode's first. A piece then keeps the newest frame of each step, and before them
the older ones of its first step: one axis of S - 1 + U frames.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.types import FIRST, PyTree, TimeStep, Trajectory


def check(observation: PyTree, stack: int) -> None:
    """Hold an observation's shapes to what a stack is.

    Raises:
        ValueError: it is not one array whose last axis is the stack.
    """
    leaves = jax.tree.leaves(observation)
    if stack > 1 and (len(leaves) != 1 or leaves[0].shape[-1:] != (stack,)):
        raise ValueError(f"a spec with stack {stack} needs one array whose last axis is that, got {observation}")


def pack(piece: Trajectory, stack: int) -> Trajectory:
    """A piece [U, ...] whose observation [U, ..., S] becomes [S - 1 + U, ...]; as it is where `stack` is 1."""
    if stack == 1:
        return piece
    observation = piece.timesteps.observation
    xp: Any = np if isinstance(observation, np.ndarray) else jnp
    older = xp.moveaxis(observation[0, ..., :-1], -1, 0)
    kept = xp.concatenate([older, observation[..., -1]])
    return piece._replace(timesteps=piece.timesteps._replace(observation=kept))


def window(timesteps: TimeStep, stack: int, begin: Any, place: Any, step: Any) -> TimeStep:
    """Windows of time steps out of stored pieces, packed like these.

    Args:
        timesteps: TimeStep [N, U, ...], packed.
        stack: S.
        begin: int [B], the step of its first piece where a window begins.
        place: int [B, L], the piece of each step.
        step: int [B, L], where in its piece.

    Returns:
        TimeStep [B, L, ...], its observation [B, S - 1 + L, ...].
    """
    if stack == 1:
        return jax.tree.map(lambda x: x[place, step], timesteps)
    xp: Any = np if isinstance(place, np.ndarray) else jnp
    others = jax.tree.map(lambda x: x[place, step], timesteps._replace(observation=()))
    first, back = place[:, :1], begin[:, None] + xp.arange(stack - 1)  # the older frames, in packed order
    older = timesteps.observation[first, back]
    # Those from before an episode that began meanwhile are not seen; the stored ones know of those before the piece.
    after = back - stack + 2  # the step after each
    starts = (timesteps.step_type[first, xp.maximum(after, 0)] == FIRST) & (after >= 0)
    hidden = xp.flip(xp.cumsum(xp.flip(starts, 1), 1), 1) > 0
    older = xp.where(_wide(hidden, older), xp.zeros_like(older), older)
    return others._replace(observation=xp.concatenate([older, timesteps.observation[place, step + stack - 1]], axis=1))


def unpack(timesteps: TimeStep, stack: int) -> TimeStep:
    """Windows [B, L, ...] whose observation [B, S - 1 + L, ...] becomes [B, L, ..., S] again."""
    if stack == 1:
        return timesteps
    frames, first = timesteps.observation, timesteps.step_type == FIRST
    xp: Any = np if isinstance(frames, np.ndarray) else jnp
    length, begun = first.shape[1], xp.cumsum(first, axis=1)  # episodes that began in the window so far
    earlier = xp.concatenate([xp.zeros_like(begun[:, :1]).repeat(stack - 1, axis=1), begun], axis=1)

    def seen(j: int) -> Any:
        """The j-th frame of each stack; nothing where an episode began after it."""
        frame, hidden = frames[:, j : j + length], earlier[:, j : j + length] < begun
        return xp.where(_wide(hidden, frame), xp.zeros_like(frame), frame)

    return timesteps._replace(observation=xp.stack([seen(j) for j in range(stack)], axis=-1))


def _wide(mask: Any, x: Any) -> Any:
    """A mask [B, L] that goes with x [B, L, ...]."""
    return mask[(..., *[None] * (x.ndim - mask.ndim))]
