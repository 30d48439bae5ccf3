"""Numbers as distributions over bins, and back."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boonta.ops.rescaling import squash, unsquash
from boonta.ops.two_hot import Support, expected, two_hot

THESIS, CODE = Support(5.0, 11), Support(30.0, 61)


def test_the_papers_example():
    """MooZi, section 5.2.7: a squashed 1.3 is 0.7 of bin 1 and 0.3 of bin 2."""
    share = two_hot(unsquash(jnp.float32(1.3)), THESIS)
    np.testing.assert_allclose(share, [0, 0, 0, 0, 0, 0, 0.7, 0.3, 0, 0, 0], atol=1e-5)


@pytest.mark.parametrize("support", [THESIS, CODE, Support(1.0, 2)])
@given(st.floats(-2000, 2000, width=32))
def test_shares_are_a_distribution_whose_mean_is_the_number(support, x):
    share = two_hot(jnp.float32(x), support)
    assert np.count_nonzero(share) <= 2
    np.testing.assert_allclose(np.sum(share), 1.0, atol=1e-4)
    mean = share @ jnp.linspace(-support.limit, support.limit, support.bins)
    clipped = np.clip(squash(jnp.float32(x)), -support.limit, support.limit)
    np.testing.assert_allclose(mean, clipped, atol=2e-4 * support.limit)


@pytest.mark.parametrize("x", [0.0, 0.4, -7.0, 30.0])
def test_there_and_back(x):
    share = two_hot(jnp.float32(x), THESIS)
    np.testing.assert_allclose(expected(jnp.log(share + 1e-30), THESIS), x, rtol=1e-3, atol=1e-4)


def test_what_is_too_large_is_the_last_bin():
    np.testing.assert_array_equal(two_hot(jnp.float32(1e9), THESIS), np.eye(11)[10])
    np.testing.assert_array_equal(two_hot(jnp.float32(-1e9), THESIS), np.eye(11)[0])


def test_any_shape():
    assert two_hot(jnp.zeros((2, 3)), CODE).shape == (2, 3, 61)
    assert expected(jnp.zeros((2, 3, 61)), CODE).shape == (2, 3)
