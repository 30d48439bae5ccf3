"""The backward linear recurrence behind every return."""

import jax
import jax.numpy as jnp

from boonta.core.types import Array


def backward(x_t: Array, decay_t: Array, last: Array | float = 0.0) -> Array:
    """y_t = x_t + decay_t * y_{t+1}, for t = T-1 ... 0, with y_T = `last`.

    Args:
        x_t: float32 [T].
        decay_t: float32 [T].
        last: float32 scalar.

    Returns:
        float32 [T].
    """

    def body(y, step):
        x, decay = step
        y = x + decay * y
        return y, y

    last = jnp.broadcast_to(jnp.asarray(last, x_t.dtype), x_t.shape[1:])
    return jax.lax.scan(body, last, (x_t, decay_t), reverse=True, unroll=16)[1]
