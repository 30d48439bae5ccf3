"""Running mean and variance of observations, as a parameter group that a learner owns."""

import jax
import jax.numpy as jnp

from boonta.core.devices import total
from boonta.core.types import Array, PyTree


def init(example: PyTree) -> PyTree:
    """Statistics of nothing yet, for observations shaped like `example`: they leave observations as they are."""
    return {
        "count": jnp.zeros((), jnp.float32),
        "mean": jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), example),
        "variance": jax.tree.map(lambda x: jnp.ones(x.shape, jnp.float32), example),
    }


def normalize(statistics: PyTree, observation: PyTree, limit: float = 10.0, floor: PyTree = 1e-8) -> PyTree:
    """Observations [..., *shape] with mean 0 and variance 1, clipped at `limit` standard deviations.

    Args:
        statistics: as `init` makes them.
        observation: pytree of float [..., *shape].
        limit: in standard deviations.
        floor: added to variances; one for all, or a pytree with one for each leaf.
    """

    def one(x: Array, mean: Array, variance: Array, floor: float) -> Array:
        return jnp.clip((x - mean) * jax.lax.rsqrt(variance + floor), -limit, limit)

    floors = jax.tree.broadcast(floor, observation)
    return jax.tree.map(one, observation, statistics["mean"], statistics["variance"], floors)


def update(statistics: PyTree, observation: PyTree, weight: Array) -> PyTree:
    """Statistics that include a batch, by the parallel form of Welford's method (Chan et al. 1979).

    Args:
        statistics: as `init` makes them.
        observation: pytree, float [N, *shape]; each device brings its own N.
        weight: float32 [N], 1 to count an observation and 0 to pass over it.

    Returns:
        The new statistics, equal on all devices.
    """
    seen = total(jnp.sum(weight))
    share = jnp.maximum(seen, 1e-8)
    count = statistics["count"] + seen

    def moments(x: Array) -> tuple[Array, Array]:
        w = weight.reshape(-1, *[1] * (x.ndim - 1))
        mean = total(jnp.sum(w * x, axis=0)) / share
        return mean, total(jnp.sum(w * (x - mean) ** 2, axis=0)) / share

    def merge(x: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        batch_mean, batch_variance = moments(x)
        part = seen / jnp.maximum(count, 1e-8)
        # Before the first batch the variance of 1 is a placeholder.
        variance = jnp.where(statistics["count"] > 0, variance, 0.0)
        offset = batch_mean - mean
        spread = (1 - part) * variance + part * batch_variance + part * (1 - part) * offset**2
        return mean + part * offset, jnp.where(count > 0, spread, 1.0)

    leaves, structure = jax.tree.flatten(observation)
    before = zip(leaves, jax.tree.leaves(statistics["mean"]), jax.tree.leaves(statistics["variance"]), strict=True)
    pairs = [merge(*leaf) for leaf in before]
    mean, variance = (jax.tree.unflatten(structure, [pair[i] for pair in pairs]) for i in (0, 1))
    return {"count": count, "mean": mean, "variance": variance}
