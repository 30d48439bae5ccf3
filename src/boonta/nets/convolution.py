"""Convolutions that are fast on the device at hand.

XLA on a CPU runs the gradient of a convolution inside a compiled loop 20 to 50 times slower than outside.
Space-to-depth and one matrix product per layer do the same sums and do not collapse; blocks of a few images stay in
the cache. On other devices the plain convolution is the fast one. Both take the same parameters and agree to rounding.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.nets.dense import Init, bias_init, kernel_init

Formulation = Literal["auto", "direct", "matmul"]


def convolve(x: Array, kernel: Array, stride: int, padding: str, formulation: Formulation = "auto") -> Array:
    """A two-dimensional convolution.

    Args:
        x: float32 [N, H, W, C].
        kernel: float32 [k, k, C, D].
        stride: in both directions.
        padding: "VALID" or "SAME".
        formulation: "direct" for XLA's convolution, "matmul" for space-to-depth and a matrix product, "auto" for
            whichever is fast here.

    Returns:
        float32 [N, H', W', D].
    """
    if formulation == "auto":
        formulation = "matmul" if jax.default_backend() == "cpu" else "direct"
    if formulation == "direct":
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    return _by_matmul(x, kernel, stride, padding)


def _by_matmul(x: Array, kernel: Array, stride: int, padding: str) -> Array:
    size, channels, features = kernel.shape[0], kernel.shape[2], kernel.shape[3]
    pads = jax.lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), padding)
    height, width = ((n + sum(pad) - size) // stride + 1 for n, pad in zip(x.shape[1:3], pads, strict=True))
    cells = -(-size // stride)  # the kernel's extent in cells of stride x stride pixels
    # Grow the kernel to whole cells, and the image to the cells that it will touch.
    grow = cells * stride - size
    kernel = jnp.pad(kernel, ((0, grow), (0, grow), (0, 0), (0, 0)))
    spare = [
        (out + cells - 1) * stride - n - pad[0] for out, n, pad in zip((height, width), x.shape[1:3], pads, strict=True)
    ]
    (top, _), (left, _) = pads
    zero = jnp.zeros((), x.dtype)
    x = jax.lax.pad(x, zero, ((0, 0, 0), (top, spare[0], 0), (left, spare[1], 0), (0, 0, 0)))
    rows, columns = height + cells - 1, width + cells - 1
    x = x.reshape(-1, rows, stride, columns, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(-1, rows, columns, stride * stride * channels)
    patches = [x[:, i : i + height, j : j + width] for i in range(cells) for j in range(cells)]
    kernel = kernel.reshape(cells, stride, cells, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    # The longer side last makes its gradient faster; without the barrier the two transpositions would cancel.
    kernel = jax.lax.optimization_barrier(kernel.reshape(-1, features).T)
    return jnp.concatenate(patches, axis=-1) @ kernel.T


class Conv(nn.Module):
    """A convolution layer; parameters as in flax.linen.Conv.

    Attributes:
        features: output channels.
        size: kernel height and width, in pixels.
        stride: in pixels.
        padding: "VALID" or "SAME".
        formulation: see `convolve`.
        initial: see `kernel_init`.
    """

    features: int
    size: int
    stride: int = 1
    padding: str = "VALID"
    formulation: Formulation = "auto"
    initial: Init = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [N, H, W, C] -> float32 [N, H', W', features]."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", kernel_init(self.initial), shape, jnp.float32)
        inputs = self.size * self.size * x.shape[-1]
        bias = self.param("bias", bias_init(self.initial, inputs), (self.features,), jnp.float32)
        return convolve(x, kernel, self.stride, self.padding, self.formulation) + bias
