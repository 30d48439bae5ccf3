"""The random keys of a run: JAX's threefry, spelt out.

On a CPU, JAX lowers threefry to a loop of small kernels to save compile time; in an environment's step that loop
costs more than the step. Spelt out, XLA fuses it into its neighbours. The numbers are those of `jax.random.key(seed)`,
bit for bit.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from boonta.core.types import Array, Key, PyTree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def key(seed: int | Array) -> Key:
    """The key of a seed, int32 or smaller."""
    return jax.random.key(seed, impl=_IMPL)


def is_key(x: Any) -> bool:
    """Whether an array, or its shape, is one of keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def without_keys(tree: PyTree) -> PyTree:
    """With the bare numbers of keys in their place."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def with_keys(tree: PyTree, like: PyTree) -> PyTree:
    """What `without_keys` gave, as it was; `like` has its kinds, arrays or shapes."""

    def one(x: Any, model: Any) -> Any:
        if not is_key(model):
            return x
        # The implementation belongs to the dtype; only an array tells it, and `model` may be a mere shape.
        return jax.random.wrap_key_data(x, impl=jax.random.key_impl(jnp.empty((), model.dtype)))

    return jax.tree.map(one, tree, like)


@partial(jax.jit, inline=True)  # traced once for all that draw alike
def _threefry(key: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of a counter, all uint32."""
    ks = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = high + ks[0], low + ks[1]
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x = x + y
            y = (y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))
            y = x ^ y
        x, y = x + ks[(i + 1) % 3], y + ks[(i + 2) % 3] + jnp.uint32(i + 1)
    return x, y


def _counters(shape: tuple[int, ...]) -> tuple[Array, Array]:
    size = 1
    for n in shape:
        size *= n
    low = jnp.arange(size, dtype=jnp.uint32).reshape(shape)
    return jnp.zeros_like(low), low


def _seed(seed: Array) -> Array:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return _keys(_threefry(key, *_counters(shape)))


def _fold_in(key: Array, data: int | Array) -> Array:
    return _keys(_threefry(key, jnp.uint32(0), jnp.asarray(data).astype(jnp.uint32)))


def _keys(numbers: tuple[Array, Array]) -> Array:
    """Keys, which XLA does not fuse into what draws from them: a chain of keys takes it minutes or more to compile."""
    return jax.lax.optimization_barrier(jnp.stack(numbers, axis=-1))


def _bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    x, y = _threefry(key, *_counters(shape))
    if width == 64:
        return (x.astype(jnp.uint64) << 32) | y.astype(jnp.uint64)
    return (x ^ y).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


_IMPL = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, fold_in=_fold_in, random_bits=_bits, name="boonta", tag="bt"
)
