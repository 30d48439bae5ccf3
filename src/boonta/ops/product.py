"""A matrix product whose derivative is as fast as itself on a CPU."""

import jax

from boonta.core.types import Array


@jax.custom_jvp
def product(x: Array, w: Array) -> Array:
    """x @ w: float32 [..., d], [d, f] -> float32 [..., f]. Has derivatives of any order, forward and reverse.

    The derivative with respect to w sums over the rows of x. XLA on a CPU is at its slowest there, and at its best
    once the narrower factor is transposed in memory first (docs/decisions/0015-transposed-before-multiplied.md).
    """
    return x @ w


@product.defjvp
def _tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, w), (x_dot, w_dot) = primals, tangents
    return x @ w, x_dot @ w + _by_weights(x, w_dot)


def _by_weights(x: Array, w: Array) -> Array:
    """x @ w, written so that its transpose with respect to w is the fast product of transposed factors."""
    rows = x.reshape(-1, x.shape[-1])
    if w.shape[0] <= w.shape[1]:
        y = _over(0, kept(rows.T), w)  # transposed: kept(rows.T) @ g
    else:
        y = kept(_over(1, kept(w.T), rows)).T  # transposed: kept(kept(g.T) @ rows).T
    return y.reshape(*x.shape[:-1], w.shape[1])


def _over(axis: int, a: Array, b: Array) -> Array:
    """The product of matrices that sums over this axis of both."""
    return jax.lax.dot_general(a, b, (((axis,), (axis,)), ((), ())))


def kept(x: Array) -> Array:
    """x, and its derivative, computed as they are written: XLA on a CPU moves nothing across the barrier."""
    return jax.lax.optimization_barrier(x) if jax.default_backend() == "cpu" else x
