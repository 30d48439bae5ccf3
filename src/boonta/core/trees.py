"""Trees of JAX arrays."""

from typing import Any

import jax
import jax.numpy as jnp

from boonta.core.types import Array, PyTree


def batch_size(tree: PyTree) -> int:
    """The length of the leading axis that all leaves share."""
    return jax.tree.leaves(tree)[0].shape[0]


def select(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where the scalar bool `condition` holds, else `no`, leaf by leaf; PRNG keys included."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def strong(tree: PyTree) -> PyTree:
    """Arrays of definite dtypes, also where there were Python numbers: a loop's carry may not change type."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def named(tree: PyTree) -> dict[str, Any]:
    """The leaves by their places, such as `params/network/0`; the same for a tuple by name and for a dictionary."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
