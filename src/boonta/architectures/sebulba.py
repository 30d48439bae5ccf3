"""Sebulba (Hessel et al. 2021): environments on the host, acting and learning on devices of their own.

    thread of an actor device          queue, bounded          the learner
    step environments on the host  ─▶  trajectories, one   ─▶  one update over the mesh of learner devices
    act, and write the step down       shard per learner       parameters to every actor device

`make` gives what is to be compiled, as pure functions; `sebulba_threads` has what moves.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.architectures.learner import Halves, halves
from boonta.architectures.learning import Learning, fused, unroll_of
from boonta.core import acting, episodes, health, random
from boonta.core.agent import Agent, check
from boonta.core.spec import Spec
from boonta.core.types import Array, Key, Origin, Params, PyTree, TimeStep, Trajectory


class Actor(NamedTuple):
    """The half that acts.

    Attributes:
        begin: (params, key, indices int32 [E], count, life) -> Slot, an actor thread's.
        act: (params, version, slot, TimeStep [E]) -> (slot, action [E]).
        close: (slot, TimeStep [E]) -> (slot, Trajectory [E], Finished, health).
        piece: params -> the shapes of one environment's trajectory.
        unroll: steps of a trajectory.
        reads: the groups that acting needs.
        observed: the names that its health - 1 points to; those of a learner's metrics follow.
    """

    begin: Callable[..., "Slot"]
    act: Callable[..., tuple["Slot", Array]]
    close: Callable[..., tuple["Slot", Trajectory, episodes.Finished, Array]]
    piece: Callable[[Params], Trajectory]
    unroll: int
    reads: tuple[str, ...]
    observed: list[str]


class Sebulba(NamedTuple):
    """The compiled halves."""

    actor: Actor
    learner: Halves
    learning: Learning


class Slot(NamedTuple):
    """What an actor thread keeps on its device: its environments' memories and a trajectory half written.

    Attributes:
        memory: the agent's, [E, ...].
        key: each environment's own random stream, [E].
        episode: Episode [E].
        t: int32, steps of this trajectory that are written.
        trajectory: Trajectory [E, ...], written up to t; its origin is that of its beginning.
    """

    memory: PyTree
    key: Key
    episode: episodes.Episode
    t: Array
    trajectory: Trajectory


def make(agent: Agent, spec: Spec, envs: int, shards: int, everyone: int = 0) -> Sebulba:
    """The compiled halves for an agent in environments of this spec.

    Args:
        agent: its learners run fused, in order.
        spec: of one environment.
        envs: environments of one trajectory batch, over all hosts: E of a thread times the hosts.
        shards: learner devices, over all hosts.
        everyone: environments over all threads and hosts; 0 for `envs`.

    Raises:
        ValueError: environments or a batch that devices, or each other, do not divide; learners that do not fit.
    """
    actor = acts(agent, spec)
    learning = fused(agent, envs, shards, everyone, spec.stack)
    return Sebulba(actor, halves(agent, learning, actor.piece, len(actor.observed)), learning)


def acts(agent: Agent, spec: Spec) -> Actor:
    """The half that acts, for an agent in environments of this spec.

    Raises:
        ValueError: learners that do not fit.
    """
    check(agent, jax.eval_shape(agent.init, jax.random.key(0)))
    length = unroll_of(agent)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    action = jax.eval_shape(spec.action.zero)
    a_step = TimeStep(spec.observation, action, scalar, scalar, jax.ShapeDtypeStruct((), jnp.int8))  # type: ignore[arg-type]
    observed_names = health.names({"observation": spec.observation, "reward": scalar})

    def begin(params: Params, key: Key, index: Array, count: int, life: Array) -> Slot:
        """An actor thread's slot, its environments at FIRST."""
        n = index.shape[0]
        streams, _, memory_keys = jax.vmap(acting.own_keys, (None, 0))(key, index)
        memory = jax.vmap(agent.memory, (None, 0, 0))(params, acting.rank(index, count), memory_keys)
        one = jax.tree.map(lambda s: jnp.zeros((n, *s.shape), s.dtype), a_step)
        _, _, extras = jax.eval_shape(jax.vmap(agent.act, (None, 0, 0, 0)), params, memory, one, streams)
        timesteps, extras = _blank(a_step, n, length + 1), _blank(_inner(extras), n, length)
        zeros = jnp.zeros_like(index)
        origin = Origin(index, jnp.full_like(index, life), zeros, zeros)
        episode = episodes.Episode(jnp.zeros(n, jnp.float32), zeros)
        return Slot(memory, streams, episode, jnp.int32(0), Trajectory(memory, timesteps, extras, origin))

    def act(params: Params, version: Array, slot: Slot, timestep: TimeStep) -> tuple[Slot, Array]:
        """One step of acting, written down where it happens."""
        memory, key, episode, t, trajectory = slot
        keys = acting.act_keys(key, trajectory.origin.step + t)
        memory, action, extras = jax.vmap(agent.act, (None, 0, 0, 0))(params, memory, timestep, keys)
        origin = trajectory.origin
        trajectory = trajectory._replace(
            timesteps=_write(trajectory.timesteps, timestep, t),
            extras=_write(trajectory.extras, extras, t),
            origin=origin._replace(version=jnp.where(t == 0, version, origin.version)),
        )
        return Slot(memory, key, episode, t + 1, trajectory), action

    def close(slot: Slot, timestep: TimeStep) -> tuple[Slot, Trajectory, episodes.Finished, Array]:
        """The trajectory, complete with its last time step; and the slot for the next, which begins with the same."""
        memory, key, episode, _, trajectory = slot
        done = trajectory._replace(timesteps=_write(trajectory.timesteps, timestep, length))
        reward, step_type = (jnp.moveaxis(x[:, 1:], 1, 0) for x in (done.timesteps.reward, done.timesteps.step_type))
        episode, finished = episodes.follow(episode, reward, step_type)
        bad = health.first_bad({"observation": done.timesteps.observation, "reward": done.timesteps.reward})
        origin = done.origin._replace(step=done.origin.step + length)
        timesteps, extras = jax.tree.map(jnp.zeros_like, (trajectory.timesteps, trajectory.extras))
        slot = Slot(memory, key, episode, jnp.int32(0), Trajectory(memory, timesteps, extras, origin))
        return slot, done, finished, bad

    def piece(params: Params) -> Trajectory:
        index = jax.ShapeDtypeStruct((1,), jnp.int32)
        slot = jax.eval_shape(partial(begin, count=1), params, random.key(0), index, life=jnp.int32(0))
        return _inner(slot.trajectory)

    return Actor(begin, act, close, piece, length, agent.reads, observed_names)


def _blank(shapes: PyTree, n: int, steps: int) -> PyTree:
    return jax.tree.map(lambda s: jnp.zeros((n, steps, *s.shape), s.dtype), shapes)


def _inner(batched: PyTree) -> PyTree:
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), batched)


def _write(buffer: PyTree, value: PyTree, t: Array | int) -> PyTree:
    """buffer[:, t] = value, leaf by leaf; in place where the buffer is donated."""
    return jax.tree.map(lambda b, v: jax.lax.dynamic_update_index_in_dim(b, v.astype(b.dtype), t, 1), buffer, value)
