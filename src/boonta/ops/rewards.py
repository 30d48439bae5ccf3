"""Rewards as losses and networks see them."""

import jax.numpy as jnp

from boonta.core.types import Array


def transform_reward(reward: Array, scale: float, clip: float | None) -> Array:
    """float32 [...], times `scale` and then clipped to [-clip, clip]; None for no limit."""
    reward = reward * scale
    return reward if clip is None else jnp.clip(reward, -clip, clip)
