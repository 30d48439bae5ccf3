"""Work cut into blocks that stay in a CPU's cache; other devices take it whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from boonta.core.types import Array, PyTree, batch_size

IMAGES = 32  # measured by benchmarks/anakin/convolution.py
ROWS = 1024  # measured, see docs/decisions/0014-gradients-in-blocks-on-a-cpu.md


def mapped(function: Callable[[Array], Array], x: Array, block: int = IMAGES) -> Array:
    """`function` over x [N, ...] in blocks; whole where N is no multiple of the block."""
    n = x.shape[0]
    if jax.default_backend() != "cpu" or n <= block or n % block:
        return function(x)
    out = jax.lax.map(function, x.reshape(n // block, block, *x.shape[1:]))
    return out.reshape(n, *out.shape[2:])


def summed(function: Callable[[PyTree], PyTree], tree: PyTree, block: int = ROWS) -> PyTree:
    """The sum of `function` over blocks of a tree of [N, ...], for functions that are sums over N.

    The block is the largest divisor of N that is at most `block`; where that is less than half of it, all at once.
    """
    n = batch_size(tree)
    size = next(d for d in range(min(n, block), 0, -1) if n % d == 0)
    if jax.default_backend() != "cpu" or size == n or size < block // 2:
        return function(tree)
    blocks = jax.tree.map(lambda x: x.reshape(n // size, size, *x.shape[1:]), tree)
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, jax.tree.map(_head, blocks)))
    return jax.lax.scan(lambda total, x: (jax.tree.map(jnp.add, total, function(x)), None), start, blocks)[0]


def _head(x: Array) -> Array:
    return x[0]
