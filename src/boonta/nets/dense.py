"""The dense layer of all networks here."""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.ops.product import product

Init = Literal["orthogonal", "glorot", "fan_in"]


def kernel_init(initial: Init, gain: float = 2.0**0.5) -> Callable[..., Array]:
    """Makes a kernel: orthogonal with this gain; or uniform, without one.

    Uniform is `glorot` (Glorot and Bengio 2010), or `fan_in`: within 1 / sqrt(inputs), as in Lillicrap et al. 2016.
    """
    if initial == "orthogonal":
        return nn.initializers.orthogonal(gain)
    if initial == "glorot":
        return nn.initializers.glorot_uniform()
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def bias_init(initial: Init, inputs: int) -> Callable[..., Array]:
    """Makes a bias: zeros, but for `fan_in`, which draws it as it draws the kernel of so many inputs."""
    if initial != "fan_in":
        return nn.initializers.zeros
    bound = inputs**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


class Dense(nn.Module):
    """y = x W + b, with the parameters of flax.linen.Dense and the product of `ops.product`.

    Attributes:
        features: width of the output.
        initial: see `kernel_init`.
        gain: see `kernel_init`.
    """

    features: int
    initial: Init = "orthogonal"
    gain: float = 2.0**0.5

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [..., d] -> float32 [..., features]."""
        inputs = x.shape[-1]
        kernel = self.param("kernel", kernel_init(self.initial, self.gain), (inputs, self.features), jnp.float32)
        bias = self.param("bias", bias_init(self.initial, inputs), (self.features,), jnp.float32)
        return product(x, kernel) + bias
