"""Multi-layer perceptrons."""

from collections.abc import Callable

import flax.linen as nn

from boonta.core.types import Array
from boonta.nets.dense import Dense, Init, kernel_init

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}


class MLP(nn.Module):
    """Dense layers, each followed by its activation.

    Attributes:
        hidden: width of each layer.
        activation: a key of ACTIVATIONS.
        initial: see `kernel_init`.
    """

    hidden: tuple[int, ...]
    activation: str = "tanh"
    initial: Init = "orthogonal"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [..., d] -> float32 [..., hidden[-1]]."""
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](Dense(width, kernel_init(self.initial))(x))
        return x
