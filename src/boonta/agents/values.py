"""What agents that learn action values share: choosing among legal actions, and weighing a sample."""

import jax
import jax.numpy as jnp

from boonta.core import devices
from boonta.core.types import Array, Key, PyTree
from boonta.nets.inputs import legal


def allowed(q: Array, observation: PyTree) -> Array:
    """Action values [..., A] with those of illegal actions as low as can be."""
    mask = legal(observation)
    return q if mask is None else jnp.where(mask, q, jnp.finfo(q.dtype).min)


def best(chooser: Array, values: Array, observation: PyTree) -> Array:
    """Of `values` [..., A], those of the legal actions that `chooser` [..., A] holds for best (van Hasselt 2010)."""
    action = jnp.argmax(allowed(chooser, observation), axis=-1, keepdims=True)
    return jnp.take_along_axis(values, action, axis=-1)[..., 0]


def explore(key: Key, q: Array, observation: PyTree, epsilon: Array) -> Array:
    """An action, int32 []: the best, or with probability epsilon any legal one. Consumes the key."""
    whether, which = jax.random.split(key)
    anything = jax.random.categorical(which, allowed(jnp.zeros_like(q), observation))
    explores = jax.random.uniform(whether, dtype=jnp.float32) < epsilon
    chosen = jnp.where(explores, anything, jnp.argmax(allowed(q, observation)))
    return chosen.astype(jnp.int32)


def normalized_weights(weights: Array) -> Array:
    """Importance weights [B] over the highest in the batch of all devices (Schaul et al. 2015, section 3.4)."""
    return weights / -devices.lowest(-jnp.max(weights))
