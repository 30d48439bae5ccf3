"""n-step and lambda returns that stop at LAST and bootstrap there."""

import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.recurrence import backward


def lambda_returns(r_t: Array, discount_t: Array, v: Array, lambda_: Array | float, first_t: Array) -> Array:
    """Lambda returns of one sequence (Sutton and Barto 2018, equation 12.18).

    Args:
        r_t: float32 [T], rewards that came WITH steps 1 ... T.
        discount_t: float32 [T], discounts that came with them, times gamma.
        v: float32 [T+1], values of steps 0 ... T.
        lambda_: scalar.
        first_t: bool [T], whether steps 1 ... T are FIRST.

    Returns:
        float32 [T]; the value itself where `first_t`.
    """
    last_tm1 = first_t  # the step before FIRST is LAST
    continues = jnp.append(~last_tm1[1:], False)
    mixing = jnp.where(continues, lambda_, 0.0)
    x_t = jnp.where(first_t, v[:-1], r_t + discount_t * (1 - mixing) * v[1:])
    return backward(x_t, jnp.where(first_t, 0.0, discount_t * mixing))


def n_step_returns(r_t: Array, discount_t: Array, v: Array, n: int, first_t: Array) -> Array:
    """n-step returns of one sequence, shorter towards its end and towards LAST.

    Args:
        r_t: float32 [T], rewards that came WITH steps 1 ... T.
        discount_t: float32 [T], discounts that came with them, times gamma.
        v: float32 [T+1], values of steps 0 ... T, to bootstrap from.
        n: steps before bootstrapping, at least 1.
        first_t: bool [T], whether steps 1 ... T are FIRST.

    Returns:
        float32 [T]; the value itself where `first_t`.
    """
    ended_t = jnp.append(first_t[1:], True)  # step t+1 is LAST, or the sequence's own end
    returns = jnp.where(first_t, v[:-1], r_t + discount_t * v[1:])
    for _ in range(n - 1):
        beyond = jnp.append(returns[1:], 0.0)
        longer = r_t + discount_t * jnp.where(ended_t, v[1:], beyond)
        returns = jnp.where(first_t, v[:-1], longer)
    return returns


def n_step_target(r_t: Array, discount_t: Array, first_t: Array) -> tuple[Array, Array, Array]:
    """What n steps of one sequence give on the way to where their return bootstraps: n steps on, or at LAST.

    Args:
        r_t: float32 [n], rewards that came WITH steps 1 ... n.
        discount_t: float32 [n], discounts that came with them, times gamma.
        first_t: bool [n], whether steps 1 ... n are FIRST.

    Returns:
        The sum of discounted rewards, float32; the discount of the value to add; and of which step, int32 in 1 ... n.
        Where the first of them is FIRST, there is no target.
    """
    inside = jnp.cumsum(first_t) == 0  # up to LAST
    discount = jnp.cumprod(jnp.where(inside, discount_t, 1.0))
    before = jnp.concatenate([jnp.ones(1, discount.dtype), discount[:-1]])
    return jnp.sum(jnp.where(inside, before * r_t, 0.0)), discount[-1], jnp.maximum(jnp.sum(inside), 1)
