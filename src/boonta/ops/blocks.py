"""Work cut into blocks that stay in a CPU's cache; other devices take it whole."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from boonta.core.trees import batch_size
from boonta.core.types import Array, PyTree

ELEMENTS = 1 << 20  # of input in a block, measured by benchmarks/anakin/convolution.py
ROWS = 1024  # measured, see docs/decisions/0014-gradients-in-blocks-on-a-cpu.md


def fitting(tree: PyTree) -> int:
    """How many rows of a tree of [N, ...] make a block: ROWS, or fewer where they hold more than ELEMENTS."""
    elements = sum(x.size for x in jax.tree.leaves(tree)) // batch_size(tree)
    return max(1, min(ROWS, ELEMENTS // max(elements, 1)))


def mapped(function: Callable[[PyTree], Array], tree: PyTree, block: int = 0) -> Array:
    """`function` over a tree of [N, ...] in blocks of that many rows, by default as many as are `fitting`: `_size`."""
    n = batch_size(tree)
    size = _size(n, block or fitting(tree))
    if size == n:
        return function(tree)
    out = jax.lax.map(function, jax.tree.map(lambda x: x.reshape(n // size, size, *x.shape[1:]), tree))
    return out.reshape(n, *out.shape[2:])


def summed(function: Callable[[PyTree], PyTree], tree: PyTree, block: int = 0) -> PyTree:
    """The sum of `function` over blocks, as `mapped`, of a tree of [N, ...], for functions that are sums over N."""
    n = batch_size(tree)
    size = _size(n, block or fitting(tree))
    if size == n:
        return function(tree)
    blocks = jax.tree.map(lambda x: x.reshape(n // size, size, *x.shape[1:]), tree)
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, jax.tree.map(_head, blocks)))
    return jax.lax.scan(lambda total, x: (jax.tree.map(jnp.add, total, function(x)), None), start, blocks)[0]


def _size(n: int, block: int) -> int:
    """The largest divisor of n that is at most `block`; n where that is less than half of it, or there is no CPU."""
    size = next(d for d in range(min(n, block), 0, -1) if n % d == 0)
    return n if jax.default_backend() != "cpu" or size < block // 2 else size


def _head(x: Array) -> Array:
    return x[0]
