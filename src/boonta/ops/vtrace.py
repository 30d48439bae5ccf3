"""V-trace (Espeholt et al. 2018, section 4.1)."""

from typing import NamedTuple

import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.recurrence import backward


class VTrace(NamedTuple):
    """Value targets vs_s and policy-gradient advantages, both float32 [T]."""

    target: Array
    advantage: Array


def vtrace(
    r_t: Array,
    discount_t: Array,
    v: Array,
    rho_tm1: Array,
    first_t: Array,
    lambda_: Array | float = 1.0,
    rho_clip: Array | float = 1.0,
    pg_rho_clip: Array | float = 1.0,
) -> VTrace:
    """Off-policy value targets and advantages of one sequence.

    With c_s = lambda * min(1, rho_s), as in remark 2 of the paper. The advantage bootstraps from vs_{s+1} mixed with
    the value by lambda, as rlax does; with lambda = 1 this is the paper's r_s + gamma * vs_{s+1} - V(x_s).

    Args:
        r_t: float32 [T], rewards that came WITH steps 1 ... T.
        discount_t: float32 [T], discounts that came with them, times gamma.
        v: float32 [T+1], values of steps 0 ... T.
        rho_tm1: float32 [T], importance ratios pi/mu of the actions at steps 0 ... T-1.
        first_t: bool [T], whether steps 1 ... T are FIRST: nothing flows across.
        lambda_: scalar, the trace's decay.
        rho_clip: scalar, rho bar.
        pg_rho_clip: scalar, the clip of the ratio before the policy gradient.

    Returns:
        VTrace; targets equal the values and advantages are zero where `first_t`.
    """
    inside = ~first_t
    v_tm1, v_t = v[:-1], v[1:]
    c_tm1 = lambda_ * jnp.minimum(1.0, rho_tm1)
    error_t = jnp.where(inside, jnp.minimum(rho_clip, rho_tm1) * (r_t + discount_t * v_t - v_tm1), 0.0)
    target_tm1 = v_tm1 + backward(error_t, jnp.where(inside, discount_t * c_tm1, 0.0))
    mixed_t = jnp.append(lambda_ * target_tm1[1:] + (1 - lambda_) * v_t[:-1], v_t[-1])
    advantage = jnp.minimum(pg_rho_clip, rho_tm1) * (r_t + discount_t * mixed_t - v_tm1)
    return VTrace(target_tm1, jnp.where(inside, advantage, 0.0))
