"""Optimisers built inside `update`, from settings that may be traced, with derivatives that are finite everywhere."""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from boonta.core.types import Array, PyTree
from boonta.ops.square_root import LEAST, square_root

Optimizer = Literal["adam", "rmsprop", "sgd"]


def optimizer(
    name: Optimizer,
    learning_rate: Array | float,
    max_grad_norm: Array | float | None,
    epsilon: float,
    decay: float = 0.99,
) -> optax.GradientTransformation:
    """Clipping by the global norm, or none, then the named optimiser.

    Args:
        name: "adam"; "rmsprop" with epsilon inside the root, as IMPALA's; "sgd" without momentum.
        learning_rate: step size; may be traced, so it can be swept and annealed.
        max_grad_norm: the global norm gradients are clipped to; 0 or None leaves them as they are.
        epsilon: of adam and rmsprop.
        decay: of rmsprop.
    """
    step = {
        # What is added under the root changes no step, but makes the root's derivative finite where a gradient is 0.
        "adam": lambda: optax.scale_by_adam(eps=epsilon, eps_root=LEAST),
        "rmsprop": lambda: optax.scale_by_rms(decay=decay, eps=epsilon),
        "sgd": optax.identity,
    }[name]()
    return optax.chain(
        optax.identity() if max_grad_norm is None else clip_by_global_norm(max_grad_norm),
        step,
        optax.scale_by_learning_rate(learning_rate),
    )


def clip_by_global_norm(max_norm: Array | float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm`, with 0 for no clipping, and with derivatives where all gradients are 0."""

    def update(updates: PyTree, state: optax.OptState, params: PyTree = None) -> tuple[PyTree, optax.OptState]:
        del params
        norm, limit = global_norm(updates), jnp.where(max_norm > 0.0, max_norm, jnp.finfo(jnp.float32).max)
        return jax.tree.map(lambda x: jnp.where(norm < limit, x, x / norm * limit), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def global_norm(gradients: PyTree) -> Array:
    """float32 [], the root of the sum of all squares."""
    return square_root(optax.tree.norm(gradients, squared=True))
