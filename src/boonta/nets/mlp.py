"""Multi-layer perceptrons."""

from collections.abc import Callable

import flax.linen as nn

from boonta.core.types import Array
from boonta.nets.dense import Dense, Init

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}


class MLP(nn.Module):
    """Dense layers, each followed by its activation, or by a normalised one (Ba et al. 2016).

    Attributes:
        hidden: width of each layer.
        activation: a key of ACTIVATIONS.
        initial: see `kernel_init`.
        layer_norm: normalise what goes into each activation.
    """

    hidden: tuple[int, ...]
    activation: str = "tanh"
    initial: Init = "orthogonal"
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [..., d] -> float32 [..., hidden[-1]]."""
        for width in self.hidden:
            x = Dense(width, self.initial)(x)
            x = ACTIVATIONS[self.activation](nn.LayerNorm()(x) if self.layer_norm else x)
        return x
