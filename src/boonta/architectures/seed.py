"""SEED (Espeholt et al. 2020): environments anywhere, acting and learning where the accelerators are.

    clients, anywhere          inference threads, each with a device            the learner
    step environments     ─▶   a batch of whoever is there: gather their   ─▶   one update over the mesh,
    (no network, no JAX)  ◀─   rows, act, scatter: one compiled call            parameters to every inference device

Memories, random streams and trajectories half written stay on the device, in rows of a table, one for each environment.
`make` gives what is to be compiled for acting, as pure functions; `seed_threads` and `seed_inference` have what moves
there, `seed_learners` what learns, from each trajectory once or from replay.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.architectures.learning import unroll_of
from boonta.core import acting, episodes, health, random
from boonta.core.agent import Agent, check
from boonta.core.spec import Spec
from boonta.core.types import Array, Key, Origin, Params, PyTree, TimeStep, Trajectory


class Table(NamedTuple):
    """What an inference device keeps of its environments, a row [R] for each.

    Attributes:
        memory: the agent's.
        key: each environment's own random stream, of this life.
        episode: Episode.
        t: int32, steps of the row's trajectory that are written.
        trajectory: Trajectory [R, ...], written up to t; its origin is that of its beginning.
    """

    memory: PyTree
    key: Key
    episode: episodes.Episode
    t: Array
    trajectory: Trajectory


class Told(NamedTuple):
    """About trajectories that are complete: the episodes that finished in them, and their health."""

    finished: episodes.Finished
    bad: Array


class Seed(NamedTuple):
    """The compiled parts. Rows are int32 [B]; one beyond the table stands for no environment.

    Attributes:
        table: (params, key, indices int32 [R]) -> Table, whose environments are still to come.
        reset: (params, key, table, rows, lives int32 [B]) -> table; their trajectories half written are dropped.
        act: (params, version, table, rows, TimeStep [B]) -> (table, action [B]).
        close: (table, chunk, rows, places int32 [B], TimeStep [B]) -> (table, chunk, Told): trajectories that have all
            but their last time step, complete with this one, to these places of the chunk, Trajectory [N, ...].
        chunk: params -> an empty chunk.
        piece: params -> the shapes of one trajectory.
        unroll: steps of a trajectory.
        reads: the groups that acting needs.
        observed: the names that `Told.bad` - 1 points to; those of the metrics follow.
    """

    table: Callable[[Params, Key, Array], Table]
    reset: Callable[[Params, Key, Table, Array, Array], Table]
    act: Callable[[Params, Array, Table, Array, TimeStep], tuple[Table, Array]]
    close: Callable[[Table, Trajectory, Array, Array, TimeStep], tuple[Table, Trajectory, Told]]
    chunk: Callable[[Params], Trajectory]
    piece: Callable[[Params], Trajectory]
    unroll: int
    reads: tuple[str, ...]
    observed: list[str]


def make(agent: Agent, spec: Spec, envs: int, size: int) -> Seed:
    """The compiled parts for an agent in environments of this spec.

    Args:
        agent: the agent.
        spec: of one environment.
        envs: environments over all inference devices and hosts.
        size: N, trajectories of a chunk, of one host: the learner takes them together.

    Raises:
        ValueError: learners that do not fit.
    """
    check(agent, jax.eval_shape(agent.init, jax.random.key(0)))
    length = unroll_of(agent)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    action = jax.ShapeDtypeStruct(spec.action.zero().shape, spec.action.zero().dtype)
    a_step = TimeStep(spec.observation, action, scalar, scalar, jax.ShapeDtypeStruct((), jnp.int8))  # type: ignore[arg-type]
    observed_names = health.names({"observation": spec.observation, "reward": scalar})

    def table(params: Params, key: Key, index: Array) -> Table:
        n = index.shape[0]
        keys, memory = jax.vmap(lambda i: _begun(agent, params, key, i, jnp.int32(0), envs))(index)
        one = jax.tree.map(lambda s: jnp.zeros((n, *s.shape), s.dtype), a_step)
        _, _, extras = jax.eval_shape(jax.vmap(agent.act, (None, 0, 0, 0)), params, memory, one, keys)
        inner = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), extras)
        zeros = jnp.zeros_like(index)
        trajectory = Trajectory(
            memory, _blank(a_step, n, length + 1), _blank(inner, n, length), Origin(index, zeros, zeros, zeros)
        )
        episode = episodes.Episode(jnp.zeros(n, jnp.float32), zeros)
        return Table(memory, keys, episode, zeros, trajectory)

    def reset(params: Params, key: Key, table: Table, rows: Array, lives: Array) -> Table:
        index = table.trajectory.origin.environment.at[rows].get(mode="clip")
        keys, memory = jax.vmap(lambda i, life: _begun(agent, params, key, i, life, envs))(index, lives)
        zeros = jnp.zeros_like(rows)
        origin = Origin(index, lives, zeros, zeros)
        episode = episodes.Episode(jnp.zeros(rows.shape, jnp.float32), zeros)
        trajectory = table.trajectory._replace(
            memory=_put(table.trajectory.memory, rows, memory), origin=_put(table.trajectory.origin, rows, origin)
        )
        fresh = {"memory": memory, "key": keys, "episode": episode, "t": zeros}
        old = {name: getattr(table, name) for name in fresh}
        return table._replace(**_put(old, rows, fresh), trajectory=trajectory)

    def act(params: Params, version: Array, table: Table, rows: Array, timestep: TimeStep) -> tuple[Table, Array]:
        """One step of acting in these environments, written down where it happens."""
        memory, key, t, origin = _take((table.memory, table.key, table.t, table.trajectory.origin), rows)
        keys = acting.act_keys(key, origin.step + t)
        memory, action, extras = jax.vmap(agent.act, (None, 0, 0, 0))(params, memory, timestep, keys)
        origin = origin._replace(version=jnp.where(t == 0, version, origin.version))
        old = table.trajectory
        trajectory = old._replace(
            timesteps=_write(old.timesteps, rows, t, timestep),
            extras=_write(old.extras, rows, t, extras),
            origin=_put(old.origin, rows, origin),
        )
        t = table.t.at[rows].add(1, mode="drop")
        return table._replace(memory=_put(table.memory, rows, memory), t=t, trajectory=trajectory), action

    def close(
        table: Table, chunk: Trajectory, rows: Array, places: Array, timestep: TimeStep
    ) -> tuple[Table, Trajectory, Told]:
        """Take complete trajectories out; what follows begins with the same time step and the memory of now."""
        memory, episode, done = _take((table.memory, table.episode, table.trajectory), rows)
        at = jnp.full_like(rows, length)
        done = done._replace(timesteps=_write(done.timesteps, jnp.arange(len(rows)), at, timestep))
        there = rows < table.t.shape[0]
        kinds = jnp.where(there[:, None], done.timesteps.step_type[:, 1:], 1)  # MID where there is nobody
        episode, finished = episodes.follow(episode, done.timesteps.reward[:, 1:].T, kinds.T)
        observed = {"observation": done.timesteps.observation, "reward": done.timesteps.reward}
        bad = health.first_bad(jax.tree.map(lambda x: _where(there, x), observed))
        origin = done.origin._replace(step=done.origin.step + length)
        trajectory = table.trajectory._replace(
            memory=_put(table.trajectory.memory, rows, memory), origin=_put(table.trajectory.origin, rows, origin)
        )
        table = table._replace(
            episode=_put(table.episode, rows, episode), t=table.t.at[rows].set(0, mode="drop"), trajectory=trajectory
        )
        return table, _put(chunk, places, done), Told(finished, bad)

    def chunk(params: Params) -> Trajectory:
        shapes = jax.eval_shape(table, params, random.key(0), jax.ShapeDtypeStruct((1,), jnp.int32)).trajectory
        return jax.tree.map(lambda s: jnp.zeros((size, *s.shape[1:]), s.dtype), shapes)

    def piece(params: Params) -> Trajectory:
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), jax.eval_shape(chunk, params))

    return Seed(table, reset, act, close, chunk, piece, length, agent.reads, observed_names)


def _begun(agent: Agent, params: Params, key: Key, index: Array, life: Array, envs: int) -> tuple[Key, PyTree]:
    """An environment's random stream in this life, and the agent's memory."""
    stream, _, memory_key = acting.own_keys(acting.streams(key, life).actors, index)
    return stream, agent.memory(params, acting.rank(index, envs), memory_key)


def _blank(shapes: PyTree, n: int, steps: int) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros((n, steps, *s.shape), s.dtype), shapes)


def _take(tree: PyTree, rows: Array) -> PyTree:
    return jax.tree.map(lambda x: x.at[rows].get(mode="clip"), tree)


def _put(tree: PyTree, rows: Array, values: PyTree) -> PyTree:
    """tree[rows] = values, leaf by leaf; rows beyond are passed over."""
    return jax.tree.map(lambda x, v: x.at[rows].set(v, mode="drop"), tree, values)


def _write(tree: PyTree, rows: Array, t: Array, values: PyTree) -> PyTree:
    """tree[rows, t] = values, leaf by leaf; rows beyond are passed over."""
    return jax.tree.map(lambda x, v: x.at[rows, t].set(v.astype(x.dtype), mode="drop"), tree, values)


def _where(there: Array, x: Array) -> Array:
    return jnp.where(there.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros_like(x))
