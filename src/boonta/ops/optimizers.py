"""Optimisers built inside `update`, from settings that may be traced."""

from typing import Literal

import optax

from boonta.core.types import Array

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
        max_grad_norm: the global norm gradients are clipped to; None leaves them as they are.
        epsilon: of adam and rmsprop.
        decay: of rmsprop.
    """
    step = {
        "adam": lambda: optax.scale_by_adam(eps=epsilon),
        "rmsprop": lambda: optax.scale_by_rms(decay=decay, eps=epsilon),
        "sgd": optax.identity,
    }[name]()
    return optax.chain(
        optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm),  # type: ignore[arg-type]
        step,
        optax.scale_by_learning_rate(learning_rate),
    )
