"""Sebulba's halves compiled for their devices, and the way from one to the other."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.sebulba import Sebulba, Slot, State
from boonta.core import devices, episodes, host, random
from boonta.core.spec import Spec
from boonta.core.trees import batch_size
from boonta.core.types import Array, Params, PyTree, Trajectory


class Acting(NamedTuple):
    """What runs on an actor device, compiled for it, and the shapes of what it makes."""

    begin: Callable[..., Slot]
    act: Callable[..., tuple[Slot, Array]]
    close: Callable[..., tuple[Slot, Trajectory, episodes.Finished, Array]]
    trajectory: Trajectory


def acting_on(unit: Sebulba, spec: Spec, params: PyTree, envs: int, everyone: int, device: Any) -> Acting:
    """Compile acting for a device.

    Args:
        unit: Sebulba.
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
    begin = jax.jit(partial(unit.begin, count=everyone)).lower(params, placed(key), index=index, life=number)
    slot = placed(begin.out_info)
    act = jax.jit(unit.act, donate_argnums=2).lower(params, number, slot, timestep)
    close = jax.jit(unit.close, donate_argnums=0).lower(slot, timestep)
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


def shipper(mesh: Mesh) -> Callable[[Trajectory], Trajectory]:
    """Trajectory [E, ...] on an actor device -> the same over all learner devices, one shard straight to each."""
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    sharding = NamedSharding(mesh, P(devices.LEARNERS))

    @jax.jit
    def split(trajectory: Trajectory) -> list[Trajectory]:
        size = batch_size(trajectory) // len(local)
        return [jax.tree.map(lambda x: x[i * size : (i + 1) * size], trajectory) for i in range(len(local))]  # noqa: B023

    def ship(trajectory: Trajectory) -> Trajectory:
        parts = split(trajectory) if len(local) > 1 else [trajectory]
        parts = [jax.device_put(part, device) for part, device in zip(parts, local, strict=True)]

        def whole(*shards: Array) -> Array:
            first, *rest = shards[0].shape
            return jax.make_array_from_single_device_arrays((first * mesh.devices.size, *rest), sharding, list(shards))

        return jax.tree.map(whole, *parts)

    return ship


SPECS: Any = State(*(P(devices.LEARNERS) if field == "replays" else P() for field in State._fields))  # type: ignore[arg-type]


def starter(unit: Sebulba, mesh: Mesh) -> Any:
    """The learner's (key, settings) -> State, over the mesh."""
    return jax.jit(jax.shard_map(unit.init, mesh=mesh, in_specs=P(), out_specs=SPECS, check_vma=False))


def updater(unit: Sebulba, mesh: Mesh) -> Any:
    """The learner's (params, rest of the state, batches) -> (State, metrics), over the mesh; the rest is used up."""
    apart = P(devices.LEARNERS)
    body = jax.shard_map(unit.update, mesh=mesh, in_specs=(SPECS, apart), out_specs=(SPECS, P()), check_vma=False)

    # Actors may still hold the parameters, so these are not donated.
    @partial(jax.jit, donate_argnums=1)
    def update(params: Params, rest: tuple[PyTree, ...], batches: list[Trajectory]) -> tuple[State, dict[str, Array]]:
        return body(State(params, *rest), batches)

    return update
