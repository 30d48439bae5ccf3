"""Generalised advantage estimation (Schulman et al. 2016)."""

import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.recurrence import backward


def gae(r_t: Array, discount_t: Array, v: Array, lambda_: Array | float, first_t: Array) -> Array:
    """Advantages of one sequence, equation 16 of Schulman et al. 2016.

    Args:
        r_t: float32 [T], rewards that came WITH steps 1 ... T.
        discount_t: float32 [T], discounts that came with them, times gamma.
        v: float32 [T+1], values of steps 0 ... T.
        lambda_: scalar, the trace's decay.
        first_t: bool [T], whether steps 1 ... T are FIRST: nothing flows across.

    Returns:
        float32 [T], advantages of the actions at steps 0 ... T-1; zero where `first_t`.
    """
    inside = ~first_t
    error_t = jnp.where(inside, r_t + discount_t * v[1:] - v[:-1], 0.0)
    return backward(error_t, jnp.where(inside, discount_t * lambda_, 0.0))
