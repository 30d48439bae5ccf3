"""Networks that see: the Nature CNN, the IMPALA networks, and a small one for 10 x 10 grids."""

import flax.linen as nn
import jax.numpy as jnp

from boonta.core.types import Array
from boonta.nets.convolution import Conv, Formulation
from boonta.nets.dense import Dense, Init


class NatureCNN(nn.Module):
    """The network of Mnih et al. 2015: 32x8x8/4, 64x4x4/2, 64x3x3/1, then a dense layer.

    Attributes:
        hidden: width of the dense layer.
        formulation: see `convolve`.
        initial: see `kernel_init`.
    """

    hidden: int = 512
    formulation: Formulation = "auto"
    initial: Init = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [N, H, W, C], H and W at least 36 -> float32 [N, hidden]."""
        for features, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(Conv(features, size, stride, formulation=self.formulation, initial=self.initial)(x))
        return nn.relu(Dense(self.hidden, self.initial)(x.reshape(x.shape[0], -1)))


class GridCNN(nn.Module):
    """One 3x3 convolution and a dense layer, as MinAtar's networks (Young and Tian 2019).

    Attributes:
        channels: of the convolution.
        hidden: width of the dense layer.
        formulation: see `convolve`.
        initial: see `kernel_init`.
    """

    channels: int = 16
    hidden: int = 128
    formulation: Formulation = "auto"
    initial: Init = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [N, H, W, C] -> float32 [N, hidden]."""
        x = nn.relu(Conv(self.channels, 3, formulation=self.formulation, initial=self.initial)(x))
        return nn.relu(Dense(self.hidden, self.initial)(x.reshape(x.shape[0], -1)))


class ImpalaResNet(nn.Module):
    """The deep network of Espeholt et al. 2018 (figure 3, right).

    Attributes:
        channels: of each section.
        blocks: residual blocks in each section.
        hidden: width of the dense layer.
        formulation: see `convolve`.
        initial: see `kernel_init`.
    """

    channels: tuple[int, ...] = (16, 32, 32)
    blocks: int = 2
    hidden: int = 256
    formulation: Formulation = "auto"
    initial: Init = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [N, H, W, C] -> float32 [N, hidden]."""
        for channels in self.channels:

            def conv(x: Array, channels: int = channels) -> Array:
                return Conv(channels, 3, padding="SAME", formulation=self.formulation, initial=self.initial)(x)

            x = _max_pool(conv(x))
            for _ in range(self.blocks):
                x = x + conv(nn.relu(conv(nn.relu(x))))
        return nn.relu(Dense(self.hidden, self.initial)(nn.relu(x).reshape(x.shape[0], -1)))


def _max_pool(x: Array) -> Array:
    """3x3 maximum with stride 2 and SAME padding, as shifted slices: the gradient of XLA's window is slow on a CPU."""
    (top, bottom), (left, right) = _same(x.shape[1]), _same(x.shape[2])
    x = jnp.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=-jnp.inf)
    height, width = (x.shape[1] - 3) // 2 + 1, (x.shape[2] - 3) // 2 + 1
    out = None
    for i in range(3):
        for j in range(3):
            part = x[:, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
            out = part if out is None else jnp.maximum(out, part)
    assert out is not None
    return out


def _same(n: int) -> tuple[int, int]:
    total = max((-(-n // 2) - 1) * 2 + 3 - n, 0)
    return total // 2, total - total // 2
