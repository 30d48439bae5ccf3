"""A random order without sorting, which on a CPU costs more than the gradient steps it serves."""

import jax
import jax.numpy as jnp

from boonta.core.types import Array, Key

_ROUNDS = 4


def permutation(key: Key, n: int) -> Array:
    """A random permutation of 0 ... n-1, int32 [n]. Consumes the key.

    A Feistel network over Z_a x Z_b with n = a * b and truly random round functions (Luby and Rackoff 1988; Black and
    Rogaway 2002): each round rotates one coordinate by a random amount that depends on the other. Where n has no
    divisors that make this mix, it is sorted after all.
    """
    a = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    b = n // a
    if a < 4 or n < 16:
        return jax.random.permutation(key, n).astype(jnp.int32)
    x, y = (axis.reshape(n) for axis in jnp.meshgrid(jnp.arange(a), jnp.arange(b), indexing="ij"))
    shifts_x, shifts_y = jax.random.split(key)
    shift_x = jax.random.randint(shifts_x, (_ROUNDS, b), 0, a, jnp.int32)
    shift_y = jax.random.randint(shifts_y, (_ROUNDS, a), 0, b, jnp.int32)
    for by_y, by_x in zip(shift_x, shift_y, strict=True):
        x = _wrap(x + by_y[y], a)
        y = _wrap(y + by_x[x], b)
    return x * b + y


def _wrap(x: Array, n: int) -> Array:
    """x modulo n for x < 2n, without the division, which is slow."""
    return jnp.where(x >= n, x - n, x)
