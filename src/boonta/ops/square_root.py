"""A square root that can be differentiated at 0."""

import jax.numpy as jnp
import numpy as np

from boonta.core.types import Array

LEAST = float(np.finfo(np.float32).tiny)


def square_root(x: Array) -> Array:
    """sqrt(x) of float32 [...], not negative, whose derivative at 0 is large but finite.

    The derivative of the plain square root is infinite there, and infinity times 0 is NaN: one weight without a
    gradient would spoil every derivative through an optimiser. Second derivatives at 0 are not finite. The value is the
    plain one's to the last bit from 1e-30 on, and 1e-19 in place of 0: nothing beside an epsilon of 1e-11.
    """
    return jnp.sqrt(x + LEAST)
