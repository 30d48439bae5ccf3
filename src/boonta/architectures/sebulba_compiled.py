"""Sebulba's acting half compiled for its devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from boonta.architectures.sebulba import Actor, Slot
from boonta.core import episodes, host, random
from boonta.core.spec import Spec
from boonta.core.types import Array, PyTree, Trajectory


class Acting(NamedTuple):
    """What runs on an actor device, compiled for it, and the shapes of what it makes."""

    begin: Callable[..., Slot]
    act: Callable[..., tuple[Slot, Array]]
    close: Callable[..., tuple[Slot, Trajectory, episodes.Finished, Array]]
    trajectory: Trajectory


def acting_on(actor: Actor, spec: Spec, params: PyTree, envs: int, everyone: int, device: Any) -> Acting:
    """Compile acting for a device.

    Args:
        actor: Actor.
        spec: the environment's.
        params: the groups that acting reads, or their shapes.
        envs: environments of a thread.
        everyone: environments over all threads and hosts.
        device: where.
    """
    here = jax.sharding.SingleDeviceSharding(device)

    def placed(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)

    index, number = jax.ShapeDtypeStruct((envs,), np.int32), jax.ShapeDtypeStruct((), np.int32)
    params, timestep = placed(params), jax.tree.map(shape, host.empty(spec, envs))
    key = jax.eval_shape(random.key, 0)
    begin = jax.jit(partial(actor.begin, count=everyone)).lower(params, placed(key), index=index, life=number)
    slot = placed(begin.out_info)
    act = jax.jit(actor.act, donate_argnums=2).lower(params, number, slot, timestep)
    close = jax.jit(actor.close, donate_argnums=0).lower(slot, timestep)
    _, trajectory, *_ = close.out_info
    start = begin.compile()
    return Acting(
        lambda params, key, index, life: start(params, key, index=index, life=life),
        act.compile(),
        close.compile(),
        jax.tree.map(shape, trajectory),
    )


def shape(x: Any) -> jax.ShapeDtypeStruct:
    """Of an array, without where it lies."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype)
