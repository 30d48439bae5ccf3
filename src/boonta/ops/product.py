"""A matrix product whose derivative is as fast as itself on a CPU."""

import jax

from boonta.core.types import Array


@jax.custom_vjp
def product(x: Array, w: Array) -> Array:
    """x @ w: float32 [..., d], [d, f] -> float32 [..., f]. Has reverse-mode derivatives of any order, no forward mode.

    The derivative with respect to w sums over the rows of x. XLA on a CPU is at its slowest there, and at its best
    once the narrower factor is transposed in memory first (docs/decisions/0015-transposed-before-multiplied.md).
    """
    return x @ w


def _forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ w, (x, w)


def _backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, w = saved
    rows, columns = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    if w.shape[0] <= w.shape[1]:
        return g @ w.T, kept(rows.T) @ columns
    return g @ w.T, kept(kept(columns.T) @ rows).T


def kept(x: Array) -> Array:
    """x, and its derivative, computed as they are written: XLA on a CPU moves nothing across the barrier."""
    return jax.lax.optimization_barrier(x) if jax.default_backend() == "cpu" else x


product.defvjp(_forward, _backward)
