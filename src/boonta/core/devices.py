"""The two device axes, and the collectives over one of them."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from boonta.core.flat import ravel
from boonta.core.types import Array, PyTree

LEARNERS = "learners"
POPULATION = "population"


def average(tree: PyTree) -> PyTree:
    """The mean over all learner devices of all hosts; the identity where there is only one.

    Drivers run updates in `shard_map(..., check_vma=False)`, where gradients arrive local to their device, so that
    devices meet only here and in the collectives below.
    """
    if count() <= 1:
        return tree
    # One collective for all leaves: on a CPU its cost is the meeting, not the bytes.
    flat, restore = ravel(tree)
    return restore(jax.lax.pmean(flat, LEARNERS))


def total(tree: PyTree) -> PyTree:
    """The sum over all learner devices of all hosts; the identity where there is only one."""
    return jax.lax.psum(tree, LEARNERS) if count() > 1 else tree


def lowest(x: Array) -> Array:
    """The smallest value over all learner devices of all hosts."""
    return jax.lax.pmin(x, LEARNERS) if count() > 1 else x


def gather(tree: PyTree) -> PyTree:
    """What each of the learner devices of all hosts has, [devices, ...], by one collective."""
    if count() <= 1:
        return jax.tree.map(lambda x: x[None], tree)
    flat, restore = ravel(tree)
    return jax.vmap(restore)(jax.lax.all_gather(flat, LEARNERS))


def count() -> int:
    """How many learner devices share this computation; 0 where the axis is not bound."""
    try:
        return jax.lax.axis_size(LEARNERS)
    except NameError:
        return 0


def rank() -> Array | int:
    """Which of the learner devices this is, from 0."""
    return jax.lax.axis_index(LEARNERS) if count() > 1 else 0


def placed(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Arrays of this host on the devices: its part of those that are sharded, or the whole of those that are not."""
    if len(sharding.device_set) == 1:  # in one call, not one for each array
        (only,) = sharding.device_set
        return jax.device_put(tree, only)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), tree)


def mesh(devices: list[Any], population: int = 1) -> Mesh:
    """A mesh of `devices` with the axes `population` (of the given size) and `learners` (the rest).

    Raises:
        ValueError: the number of devices is not a multiple of `population`.
    """
    if len(devices) % population:
        raise ValueError(
            f"the number of devices must be a multiple of the population axis, got {len(devices)} and {population}"
        )
    grid = np.asarray(devices).reshape(population, -1)
    return Mesh(grid, (POPULATION, LEARNERS), axis_types=(AxisType.Auto, AxisType.Auto))
