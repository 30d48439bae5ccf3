"""Keys of core.random give the numbers of jax.random, bit for bit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core import random

DRAWS = {
    "uniform": partial(jax.random.uniform, shape=(3, 5)),
    "uniform scalar": jax.random.uniform,
    "normal": partial(jax.random.normal, shape=(7,)),
    "truncated normal": partial(jax.random.truncated_normal, lower=-1.0, upper=2.0, shape=(4,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.arange(4.0), shape=(9,)),
    "bernoulli": partial(jax.random.bernoulli, p=0.3, shape=(31,)),
    "permutation": lambda key: jax.random.permutation(key, 13),
    "nothing": partial(jax.random.uniform, shape=(0, 2)),
    **{
        f"randint {dtype.__name__}": partial(jax.random.randint, shape=(11,), minval=0, maxval=100, dtype=dtype)
        for dtype in (jnp.int8, jnp.int16, jnp.int32)
    },
    **{
        f"bits {dtype.__name__}": partial(jax.random.bits, shape=(6,), dtype=dtype)
        for dtype in (jnp.uint8, jnp.uint16, jnp.uint32)
    },
    "bfloat16": lambda key: jax.random.uniform(key, (5,), jnp.bfloat16).astype(jnp.float32),
    "split": lambda key: jax.random.key_data(jax.random.split(key, 4)),
    "split in a grid": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 17)),
    "fold_in, then split": lambda key: jax.random.normal(jax.random.split(jax.random.fold_in(key, 2**31 + 5))[1]),
    "clone": lambda key: jax.random.uniform(jax.random.clone(key), (2,)),
}


def both(seed):
    return random.key(seed), jax.random.key(seed)


@pytest.mark.parametrize("seed", [0, 42, -1, 2**31 - 1])
def test_seeds(seed):
    ours, theirs = both(seed)
    np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


def test_seeds_that_are_arrays():
    ours, theirs = both(jnp.int32(9))
    np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_jax(name):
    draw = jax.jit(jax.vmap(DRAWS[name]))
    ours, theirs = (draw(jax.random.split(key, 3)) for key in both(7))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["uniform", "fold_in", "bits uint8"])
def test_numbers_do_not_depend_on_jit_and_vmap(name):
    ours, theirs = (DRAWS[name](key) for key in both(3))
    np.testing.assert_array_equal(ours, theirs)


def test_folding_in_an_index_under_vmap_is_folding_it_in_alone():
    ours, theirs = (
        jax.vmap(lambda i, key=key: jax.random.key_data(jax.random.fold_in(key, i)))(jnp.arange(4)) for key in both(1)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_64_bits():
    with jax.enable_x64(True):
        ours, theirs = (jax.jit(lambda key: jax.random.bits(key, (4,), jnp.uint64))(key) for key in both(5))
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_keys_can_be_selected():
    """As the start of a new episode does, where the state holds a key."""
    a, b = random.key(0), random.key(1)
    chosen = jnp.where(jnp.array([True, False]), a, b)
    np.testing.assert_array_equal(jax.random.key_data(chosen), jax.random.key_data(jnp.stack([a, b])))


@pytest.mark.parametrize("derived", [partial(jax.random.split, num=3), partial(jax.random.fold_in, data=17)])
def test_keys_are_not_fused_into_what_draws_from_them(derived):
    text = jax.jit(lambda key: jax.random.uniform(derived(key).ravel()[0])).lower(random.key(7)).as_text()
    assert "optimization_barrier" in text  # the time to compile, which it bounds, is too noisy to assert
