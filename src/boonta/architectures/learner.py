"""The learner's half of architectures that act elsewhere: one state, one update over the mesh of learner devices."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.learning import Learning, Stored, gathered, initial, spread
from boonta.core import acting, devices, health
from boonta.core.agent import Agent, Experience
from boonta.core.trees import batch_size
from boonta.core.types import Array, Ids, Key, Params, PyTree, Sample, Trajectory
from boonta.replay import frames
from boonta.replay.windows import windows


class State(NamedTuple):
    """Everything that the learner is; with the environments begun anew, what a checkpoint keeps.

    Attributes:
        params: the agent's groups.
        learners: each learner's private state, by name.
        replays: what learners have to learn from besides an iteration's own experience, by name, `learning.spread`.
        key: random stream of the updates.
        updates: int32, updates made: the version of the parameters.
        iterations: int32, iterations made.
    """

    params: Params
    learners: dict[str, PyTree]
    replays: Stored
    key: Key
    updates: Array
    iterations: Array


class Halves(NamedTuple):
    """Pure functions.

    Attributes:
        init: (key, settings) -> State, on one device; `settings` overrides scalars of the parameter group `settings`.
        update: (State, [Trajectory [E] ...]) -> (State, metrics), inside `shard_map`.
    """

    init: Callable[[Key, dict[str, Array]], State]
    update: Callable[[State, list[Trajectory]], tuple[State, dict[str, Array]]]


def halves(agent: Agent, learning: Learning, piece: Callable[[Params], Trajectory], observed: int) -> Halves:
    """What the learner compiles.

    Args:
        agent: whose learners these are.
        learning: Learning.
        piece: params -> the shapes of one trajectory.
        observed: how many names of `health` come before those of the metrics.
    """

    def init(key: Key, settings: dict[str, Array]) -> State:
        streams = acting.streams(key)
        params, learners = initial(agent, streams.params, settings)
        zero = jnp.zeros((), jnp.int32)
        replays = spread(learning.lasting(piece(params)))
        return State(params, learners, replays, streams.updates, zero, zero)

    def update(state: State, batches: list[Trajectory]) -> tuple[State, dict[str, Array]]:
        """One iteration of learning, on this device's share of the batches."""
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batches[0])
        lasting = jax.eval_shape(learning.lasting, example)
        stored = gathered(state.replays, lasting) | learning.passing(example)
        for batch in batches:
            stored = learning.insert(state.params, stored, batch)
        key, update_key = jax.random.split(state.key)
        update_key = jax.random.fold_in(update_key, devices.rank())
        learned = learning.learn(state.params, state.learners, stored, update_key, state.updates)
        bad = health.first_bad(learned.metrics)
        metrics = learned.metrics | {
            "health": health.everywhere(jnp.where(bad > 0, bad + observed, 0)),
            "made": learned.updates,
            "policy_lag_mean": devices.average(learned.lag),
            "policy_lag_max": -devices.lowest(-learned.lag_max),
        }
        replays = spread({name: learned.stored[name] for name in state.replays})
        updates = state.updates + learned.updates
        return State(learned.params, learned.states, replays, key, updates, state.iterations + 1), metrics

    return Halves(init, update)


SPECS: Any = State(*(P(devices.LEARNERS) if field == "replays" else P() for field in State._fields))  # type: ignore[arg-type]


def starter(half: "Halves | Sampled", mesh: Mesh) -> Any:
    """The learner's (key, settings) -> State, over the mesh."""
    return jax.jit(jax.shard_map(half.init, mesh=mesh, in_specs=P(), out_specs=SPECS, check_vma=False))


def updater(half: Halves, mesh: Mesh) -> Any:
    """The learner's (params, rest of the state, batches) -> (State, metrics), over the mesh; the rest is used up."""
    apart = P(devices.LEARNERS)
    body = jax.shard_map(half.update, mesh=mesh, in_specs=(SPECS, apart), out_specs=(SPECS, P()), check_vma=False)

    # Actors may still hold the parameters, so these are not donated.
    @partial(jax.jit, donate_argnums=1)
    def update(params: Params, rest: tuple[PyTree, ...], batches: list[Trajectory]) -> tuple[State, dict[str, Array]]:
        return body(State(params, *rest), batches)

    return update


def shipper(mesh: Mesh) -> Callable[[Trajectory], Trajectory]:
    """Trajectory [E, ...] on an actor device -> the same over all learner devices, one shard straight to each."""
    if mesh.devices.size == 1:  # an array that lies there already is left as it is, without a call for each
        (only,) = mesh.devices.flat
        return lambda trajectory: (
            trajectory if jax.tree.leaves(trajectory)[0].device == only else jax.device_put(trajectory, only)
        )
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


class Sampled(NamedTuple):
    """The learner's half where samples come from replay on the host.

    Attributes:
        init: as in `Halves`.
        update: (State, Sample [B / devices]) -> (State, metrics, priorities [B / devices] or None), in `shard_map`.
        first: (params, Trajectory [K]) -> priorities [K] of what enters replay; None for the highest so far.
        again: (params, Trajectory [n] with the time steps [n, U] alone, key) -> extras [n, U, ...] of acting on them
            again. Consumes the key.
    """

    init: Callable[[Key, dict[str, Array]], State]
    update: Callable[[State, Sample], tuple[State, dict[str, Array], Array | None]]
    first: Callable[[Params, Trajectory], Array] | None
    again: Callable[[Params, Trajectory, Key], PyTree]


def sampled(agent: Agent, observed: int, stack: int) -> Sampled:
    """What the learner compiles, for an agent with one learner.

    Args:
        agent: whose learner this is.
        observed: how many names of `health` come before those of the metrics.
        stack: frames in an observation, which come packed.

    Raises:
        ValueError: several learners.
    """
    if len(agent.learners) != 1:
        raise ValueError(f"replay on the host feeds one learner, got {', '.join(agent.learners)}")
    ((name, learner),) = agent.learners.items()

    def init(key: Key, settings: dict[str, Array]) -> State:
        streams = acting.streams(key)
        params, learners = initial(agent, streams.params, settings)
        zero = jnp.zeros((), jnp.int32)
        return State(params, learners, {}, streams.updates, zero, zero)

    def whole(packed: Trajectory) -> Trajectory:
        return packed._replace(timesteps=frames.unpack(packed.timesteps, stack))

    def update(state: State, sample: Sample) -> tuple[State, dict[str, Array], Array | None]:
        key, update_key = jax.random.split(state.key)
        update_key = jax.random.fold_in(update_key, devices.rank())
        sample = sample._replace(trajectory=whole(sample.trajectory))
        private, owned, feedback = learner.update(state.learners[name], state.params, sample, update_key)
        bad, age = health.first_bad(feedback.metrics), state.updates - sample.trajectory.origin.version
        metrics = feedback.metrics | {
            "health": health.everywhere(jnp.where(bad > 0, bad + observed, 0)),
            "made": jnp.int32(1),
            "policy_lag_mean": devices.average(jnp.mean(age.astype(jnp.float32))),
            "policy_lag_max": -devices.lowest(-jnp.max(age)),
        }
        state = State(state.params | owned, {name: private}, {}, key, state.updates + 1, state.iterations + 1)
        return state, metrics, feedback.priorities

    first = None
    if learner.insert is not None:
        insert = learner.insert
        first = lambda params, packed: jax.vmap(partial(insert, params))(whole(packed))  # noqa: E731

    def again(params: Params, packed: Trajectory, key: Key) -> PyTree:
        past = whole(packed)
        keys = jax.random.split(key, past.timesteps.reward.shape)
        return jax.vmap(partial(acting.reanalyse, agent, params))(past.memory, past.timesteps, keys)[1]

    return Sampled(init, update, first, again)


def sample_like(piece: Trajectory, experience: Experience, batch: int, stack: int) -> Sample:
    """The shapes of a sample of packed windows, from those of one environment's piece."""
    length = windows(experience).length

    def spread(shape: Any, *steps: int) -> jax.ShapeDtypeStruct:
        rest = shape.shape[1:] if steps else shape.shape
        return jax.ShapeDtypeStruct((batch, *steps, *rest), shape.dtype)

    timesteps = jax.tree.map(lambda s: spread(s, length + 1), piece.timesteps)
    if stack > 1:
        seen = piece.timesteps.observation
        frame = jax.ShapeDtypeStruct((0, *seen.shape[1:-1]), seen.dtype)
        timesteps = timesteps._replace(observation=spread(frame, stack + length))
    trajectory = Trajectory(
        jax.tree.map(spread, piece.memory) if experience.memory else (),
        timesteps,
        jax.tree.map(lambda s: spread(s, length), piece.extras),
        jax.tree.map(spread, piece.origin),
    )
    number, place = (jax.ShapeDtypeStruct((batch,), kind) for kind in (np.float32, np.int32))
    return Sample(trajectory, number, Ids(place, place))  # type: ignore[arg-type]


def metric_names(metrics: dict[str, Any]) -> list[str]:
    """The names of the metrics that `health` may point to."""
    return health.names({key: value for key, value in metrics.items() if not key.startswith("policy_lag")})


def sampled_updater(half: Sampled, mesh: Mesh) -> Any:
    """The learner's (params, rest of the state, sample) -> (State, metrics, priorities); the rest is used up."""
    apart = P(devices.LEARNERS)
    specs = {"in_specs": (P(), apart), "out_specs": (P(), P(), apart)}
    body = jax.shard_map(half.update, mesh=mesh, check_vma=False, **specs)  # type: ignore[arg-type]

    @partial(jax.jit, donate_argnums=1)
    def update(
        params: Params, rest: tuple[PyTree, ...], sample: Sample
    ) -> tuple[State, dict[str, Array], Array | None]:
        return body(State(params, *rest), sample)

    return update
