"""Multi-layer perceptrons."""

from collections.abc import Callable

import flax.linen as nn
import numpy as np

from boonta.core.types import Array
from boonta.nets.dense import Dense

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}


class MLP(nn.Module):
    """Dense layers, each followed by its activation; orthogonal initialisation of gain sqrt(2).

    Attributes:
        hidden: width of each layer.
        activation: a key of ACTIVATIONS.
    """

    hidden: tuple[int, ...]
    activation: str = "tanh"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """float32 [..., d] -> float32 [..., hidden[-1]]."""
        for width in self.hidden:
            x = ACTIVATIONS[self.activation](Dense(width, kernel_init=nn.initializers.orthogonal(np.sqrt(2)))(x))
        return x
