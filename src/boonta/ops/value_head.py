"""What a critic says: a number, or a distribution of returns; of each, the mean, the atoms and the loss.

A target is a set of atoms z [K] with probabilities p [K]; a number is one atom. So one formula makes the targets of all
kinds: z = r + gamma z'.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.types import Array

Kind = Literal["mean", "categorical", "quantile"]


class ValueHead(NamedTuple):
    """Pure functions of a critic's outputs.

    Attributes:
        outputs: O, how many the network has.
        mean: float32 [..., O] -> the expected return, float32 [...].
        atoms: float32 [..., O] -> atoms and their probabilities, float32 [..., K] both.
        loss: (outputs [O], target atoms [K], their probabilities [K]) -> float32 []; the target is held fixed.
    """

    outputs: int
    mean: Callable[[Array], Array]
    atoms: Callable[[Array], tuple[Array, Array]]
    loss: Callable[[Array, Array, Array], Array]


def value_head(kind: Kind, bins: int = 51, low: float = -10.0, high: float = 10.0) -> ValueHead:
    """The head of this kind.

    Args:
        kind: "mean"; "categorical", C51's (Bellemare et al. 2017); "quantile", QR-DQN's (Dabney et al. 2018).
        bins: atoms of a distribution.
        low: the lowest return that the categorical one can say.
        high: the highest.
    """
    return {"mean": _mean, "categorical": lambda: _categorical(bins, low, high), "quantile": lambda: _quantile(bins)}[
        kind
    ]()


def _mean() -> ValueHead:
    def loss(outputs: Array, target: Array, probabilities: Array) -> Array:
        return 0.5 * (outputs[0] - jax.lax.stop_gradient(target @ probabilities)) ** 2

    return ValueHead(1, lambda x: x[..., 0], lambda x: (x, jnp.ones_like(x)), loss)


def _categorical(bins: int, low: float, high: float) -> ValueHead:
    support = jnp.linspace(low, high, bins, dtype=jnp.float32)
    width = (high - low) / (bins - 1)

    def atoms(outputs: Array) -> tuple[Array, Array]:
        return jnp.broadcast_to(support, outputs.shape), jax.nn.softmax(outputs)

    def loss(outputs: Array, target: Array, probabilities: Array) -> Array:
        """Cross-entropy with the target shared by the bins next to each of its atoms (equation 7)."""
        distance = jnp.abs(jnp.clip(target, low, high)[:, None] - support) / width
        projected = probabilities @ jnp.maximum(1.0 - distance, 0.0)
        return -jax.lax.stop_gradient(projected) @ jax.nn.log_softmax(outputs)

    return ValueHead(bins, lambda x: jax.nn.softmax(x) @ support, atoms, loss)


def _quantile(bins: int) -> ValueHead:
    levels = (jnp.arange(bins, dtype=jnp.float32) + 0.5) / bins

    def atoms(outputs: Array) -> tuple[Array, Array]:
        return outputs, jnp.full_like(outputs, 1.0 / bins)

    def loss(outputs: Array, target: Array, probabilities: Array) -> Array:
        """The quantile Huber loss with kappa 1 (equations 9 and 10)."""
        error = jax.lax.stop_gradient(target) - outputs[:, None]  # [O, K]
        huber = jnp.where(jnp.abs(error) <= 1.0, 0.5 * error**2, jnp.abs(error) - 0.5)
        below = jax.lax.stop_gradient(error < 0).astype(jnp.float32)
        return jnp.sum(jnp.abs(levels[:, None] - below) * huber @ jax.lax.stop_gradient(probabilities))

    return ValueHead(bins, lambda x: jnp.mean(x, axis=-1), atoms, loss)
