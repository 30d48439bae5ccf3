"""Values squashed so that rewards of any size can be learned from (Pohlen et al. 2018)."""

import jax.numpy as jnp

from boonta.core.types import Array

EPSILON = 1e-3


def squash(x: Array, epsilon: float = EPSILON) -> Array:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, any shape (proposition A.2)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unsquash(x: Array, epsilon: float = EPSILON) -> Array:
    """The inverse of `squash`, any shape; epsilon above 0.

    The paper's closed form subtracts nearly equal numbers where x is small; this one, solved for sqrt(|x| + 1) - 1 and
    multiplied out, does not, so float32 keeps its digits.
    """
    # With u = sqrt(|y| + 1) - 1: |x| = u + epsilon (u^2 + 2 u), a quadratic whose positive root is below.
    b = 1.0 + 2.0 * epsilon
    u = 2.0 * jnp.abs(x) / (b + jnp.sqrt(b * b + 4.0 * epsilon * jnp.abs(x)))
    return jnp.sign(x) * (u * u + 2.0 * u)
