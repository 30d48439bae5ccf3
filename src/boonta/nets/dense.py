"""The dense layer of all networks here."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.product import product


class Dense(nn.Module):
    """y = x W + b, with the parameters of flax.linen.Dense and the product of `ops.product`.

    Attributes:
        features: width of the output.
        kernel_init: makes W, [d, features].
    """

    features: int
    kernel_init: Callable[..., Array]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [..., d] -> float32 [..., features]."""
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        return product(x, kernel) + bias
