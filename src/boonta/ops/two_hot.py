"""Numbers as distributions over a support, and back: what MuZero's value and reward heads learn.

A number is squashed (`ops.rescaling`), clipped to the support, and shared by the two bins next to it (Schrittwieser et
al. 2020, appendix F; Bellemare et al. 2017).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.rescaling import squash, unsquash


class Support(NamedTuple):
    """Equally spaced bins.

    Attributes:
        limit: the highest bin, in squashed units; the lowest is its negative.
        bins: how many, at least 2.
    """

    limit: float = 5.0
    bins: int = 11


def two_hot(x: Array, support: Support) -> Array:
    """float32 [...] -> probabilities [..., bins], at most two of them not 0."""
    place = (jnp.clip(squash(x), -support.limit, support.limit) / support.limit + 1.0) / 2.0 * (support.bins - 1)
    return jnp.maximum(1.0 - jnp.abs(place[..., None] - jnp.arange(support.bins, dtype=jnp.float32)), 0.0)


def clipped(x: Array, support: Support) -> Array:
    """bool [...], whether numbers float32 [...] lie beyond the support."""
    return jnp.abs(squash(x)) > support.limit


def expected(logits: Array, support: Support) -> Array:
    """Logits [..., bins] -> the number they stand for, float32 [...]."""
    bins = jnp.linspace(-support.limit, support.limit, support.bins, dtype=jnp.float32)
    return unsquash(jax.nn.softmax(logits) @ bins)
