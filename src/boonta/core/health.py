"""Finding the tensor that went bad."""

import jax
import jax.numpy as jnp

from boonta.core import devices
from boonta.core.types import Array, PyTree

_FINE = 2**31 - 1


def names(tree: PyTree) -> list[str]:
    """The paths of the floating-point leaves, in the order of `first_bad`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]


def earliest(codes: Array) -> Array:
    """int32 [], the smallest of the codes [...] that is not 0; 0 where all are."""
    return _opened(jnp.min(_closed(codes)))


def everywhere(code: Array) -> Array:
    """`earliest` over all learner devices of all hosts."""
    return _opened(devices.lowest(_closed(code)))


def _closed(code: Array) -> Array:
    return jnp.where(code > 0, code, _FINE)


def _opened(code: Array) -> Array:
    return jnp.where(code == _FINE, 0, code)


def first_bad(tree: PyTree) -> Array:
    """int32 [], 0 where every floating-point leaf is finite, else 1 + the place in `names` of the first that is not."""
    if not names(tree):
        return jnp.zeros((), jnp.int32)
    # A sum is finite only if all its terms are, and is one pass; overflow of finite terms is a fault as well.
    sums = [jnp.sum(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    bad = ~jnp.isfinite(jnp.stack(sums))
    return jnp.where(bad.any(), jnp.argmax(bad).astype(jnp.int32) + 1, 0)
