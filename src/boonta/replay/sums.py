"""Drawing in proportion to weights that change: a sum tree of two levels, wide enough for a vector unit.

A binary tree takes log2(n) steps one after the other; with about sqrt(n) blocks of sqrt(n) weights a draw is two short
cumulative sums, and a change sums one block again, so that rounding errors never pile up.
"""

from typing import NamedTuple

import jax.numpy as jnp

from boonta.core.types import Array


class Sums(NamedTuple):
    """Weights float32 [blocks, width] of places 0, 1, ... row by row, and the sum of each block, float32 [blocks]."""

    weights: Array
    totals: Array


def zeros(size: int) -> Sums:
    """Weights of 0 for at least `size` places."""
    width = 1
    while width * width < size:
        width *= 2
    blocks = -(-size // width)
    return Sums(jnp.zeros((blocks, width), jnp.float32), jnp.zeros(blocks, jnp.float32))


def put(sums: Sums, places: Array, weights: Array) -> Sums:
    """The weights [K] at these places, int32 [K]; places below 0 are passed over."""
    width = sums.weights.shape[1]
    blocks = jnp.where(places < 0, len(sums.totals), places // width)  # beyond the end: dropped
    changed = sums.weights.at[blocks, places % width].set(weights, mode="drop")
    totals = changed.at[blocks].get(mode="clip").sum(axis=1)
    return Sums(changed, sums.totals.at[blocks].set(totals, mode="drop"))


def at(sums: Sums, places: Array) -> Array:
    """The weights float32 [K] at these places, int32 [K]."""
    width = sums.weights.shape[1]
    return sums.weights[places // width, places % width]


def total(sums: Sums) -> Array:
    """The sum of all weights, float32 []."""
    return jnp.sum(sums.totals)


def find(sums: Sums, shares: Array) -> Array:
    """The places, int32 [K], where the cumulative sum of the weights reaches these shares of its total, in [0, 1).

    A place whose weight is 0 is never found, if there is another.
    """
    ends = jnp.cumsum(sums.totals)
    wanted = shares * ends[-1]
    block = _within(ends, sums.totals, wanted)
    weights = sums.weights[block]
    left = wanted - (ends - sums.totals)[block]
    return block * sums.weights.shape[1] + _within(jnp.cumsum(weights, axis=-1), weights, left)


def _within(ends: Array, weights: Array, wanted: Array) -> Array:
    """The first index whose end [..., n] is beyond `wanted` [K]; rounding is kept from choosing a weight of 0."""
    beyond = (ends > wanted[:, None]) & (weights > 0)
    last = weights.shape[-1] - 1 - jnp.argmax(jnp.flip(weights > 0, -1), -1)
    return jnp.where(beyond.any(-1), jnp.argmax(beyond, -1), last).astype(jnp.int32)
