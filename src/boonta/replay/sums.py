"""Drawing in proportion to weights that change: a sum tree whose nodes have as many children as a vector unit likes.

A binary tree takes log2(n) steps one after the other, and one sum over all weights touches all of them; here a draw is
a few short cumulative sums, and a change sums a few short rows again, so that rounding errors never pile up.
"""

from typing import NamedTuple

import jax.numpy as jnp

from boonta.core.types import Array

WIDTH = 32  # children of a node


class Sums(NamedTuple):
    """A sum tree.

    Attributes:
        levels: float32 [rows, WIDTH] each: the weights of places 0, 1, ... row by row, then the sums of those rows, and
            so on; the last has one row.
    """

    levels: tuple[Array, ...]

    @property
    def weights(self) -> Array:
        """The weights of all places, float32 [places or more]."""
        return self.levels[0].reshape(-1)


def zeros(size: int) -> Sums:
    """Weights of 0 for at least `size` places."""
    levels = list[Array]()
    while not levels or size > 1:
        size = -(-size // WIDTH)
        levels.append(jnp.zeros((size, WIDTH), jnp.float32))
    return Sums(tuple(levels))


def flat(size: int) -> Sums:
    """The same without sums, where `total` and `find` are not asked for."""
    return Sums(zeros(size).levels[:1])


def put(sums: Sums, places: Array, weights: Array) -> Sums:
    """The weights [K] at these places, int32 [K]; places below 0 are passed over."""
    changed, there, values = [], places, weights
    for level in sums.levels:
        there = jnp.where(places < 0, level.size, there)  # beyond the end: dropped
        rows = there // WIDTH
        level = level.at[rows, there % WIDTH].set(values, mode="drop")
        changed.append(level)
        there, values = rows, level.at[rows].get(mode="clip").sum(axis=1)
    return Sums(tuple(changed))


def at(sums: Sums, places: Array) -> Array:
    """The weights float32 [K] at these places, int32 [K]."""
    return sums.levels[0][places // WIDTH, places % WIDTH]


def total(sums: Sums) -> Array:
    """The sum of all weights, float32 []."""
    return jnp.sum(sums.levels[-1])


def find(sums: Sums, shares: Array) -> Array:
    """The places, int32 [K], where the cumulative sum of the weights reaches these shares of its total, in [0, 1).

    A place whose weight is 0 is never found, if there is another.
    """
    row, left = jnp.zeros(shares.shape, jnp.int32), shares * total(sums)
    for level in reversed(sums.levels):
        weights = level[row]
        ends = jnp.cumsum(weights, axis=-1)
        beyond = (ends > left[:, None]) & (weights > 0)
        last = WIDTH - 1 - jnp.argmax(jnp.flip(weights > 0, -1), -1)  # rounding must not choose a weight of 0
        child = jnp.where(beyond.any(-1), jnp.argmax(beyond, -1), last).astype(jnp.int32)
        left -= jnp.take_along_axis(ends - weights, child[:, None], 1)[:, 0]
        row = row * WIDTH + child
    return row
