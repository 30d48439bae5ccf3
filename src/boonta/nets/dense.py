"""The dense layer of all networks here."""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.product import product

Init = Literal["orthogonal", "glorot"]


def kernel_init(initial: Init, gain: float = 2.0**0.5) -> Callable[..., Array]:
    """Makes a kernel: orthogonal with this gain, or uniform after Glorot and Bengio 2010, which has none."""
    return nn.initializers.orthogonal(gain) if initial == "orthogonal" else nn.initializers.glorot_uniform()


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
