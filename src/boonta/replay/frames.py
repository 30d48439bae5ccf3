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


def pack(piece: Trajectory, stack: int) -> Trajectory:
    """A piece [U, ...] whose observation [U, ..., S] becomes [S - 1 + U, ...]; as it is where `stack` is 1."""
    if stack == 1:
        return piece
    observation = piece.timesteps.observation
    xp: Any = np if isinstance(observation, np.ndarray) else jnp
    older = xp.moveaxis(observation[0, ..., :-1], -1, 0)
    kept = xp.concatenate([older, observation[..., -1]])
    return piece._replace(timesteps=piece.timesteps._replace(observation=kept))


def unpack(timesteps: TimeStep, stack: int, chain: Any, begin: Any, place: Any, step: Any, unroll: int) -> TimeStep:
    """Windows of time steps out of stored pieces.

    Args:
        timesteps: TimeStep [N, U, ...], packed.
        stack: S.
        chain: int [B, W], places of the pieces of each window.
        begin: int [B], the step of the first piece where the window begins.
        place: int [B, L], the piece of each step.
        step: int [B, L], where in its piece.
        unroll: U.

    Returns:
        TimeStep [B, L, ...].
    """
    if stack == 1:
        return jax.tree.map(lambda x: x[place, step], timesteps)
    xp: Any = np if isinstance(place, np.ndarray) else jnp
    others = jax.tree.map(lambda x: x[place, step], timesteps._replace(observation=()))
    now = begin[:, None] + xp.arange(step.shape[1])
    back = now[..., None] - xp.arange(stack - 1, -1, -1)  # of each frame of a stack, the oldest first
    piece = xp.take_along_axis(chain[:, None], xp.maximum(back, 0) // unroll, axis=-1)
    at = xp.where(back < 0, back, back % unroll) + stack - 1
    seen = timesteps.observation[piece, at]  # [B, L, S, ...]
    # A frame from before the episode's first is not seen; of those before the piece itself the stored ones know.
    starts = (timesteps.step_type[piece, xp.maximum(back, 0) % unroll] == FIRST) & (back >= 0)
    later = xp.flip(xp.cumsum(xp.flip(starts, -1), -1), -1) - starts > 0  # whether a younger step of the stack is FIRST
    seen = xp.where(later[(..., *[None] * (seen.ndim - 3))], xp.zeros_like(seen), seen)
    return others._replace(observation=xp.moveaxis(seen, 2, -1))


def frames_of(observation: PyTree, stack: int) -> None:
    """Hold an observation's shapes to what a stack is.

    Raises:
        ValueError: it is not one array whose last axis is the stack.
    """
    leaves = jax.tree.leaves(observation)
    if stack > 1 and (len(leaves) != 1 or leaves[0].shape[-1] != stack):
        raise ValueError(f"a spec with stack {stack} needs one array whose last axis is that, got {observation}")
