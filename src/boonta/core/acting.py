"""Acting: the first half of the ring, from time steps to trajectories."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core import episodes
from boonta.core.agent import Agent
from boonta.core.environment import Environment, advance
from boonta.core.types import Array, Extras, Key, Memory, Origin, Params, PyTree, TimeStep, Trajectory


class Actor(NamedTuple):
    """An agent in an environment, between two steps.

    Attributes:
        state: the environment's.
        timestep: the one that `act` has not seen yet.
        memory: the agent's.
        key: this environment's own random stream; steps draw from it by their number.
        index: int32, the environment's global index.
        step: int32, steps made so far.
        episode: Episode.
    """

    state: PyTree
    timestep: TimeStep
    memory: Memory
    key: Key
    index: Array
    step: Array
    episode: episodes.Episode


def begin(agent: Agent, environment: Environment, params: Params, index: Array, count: int, key: Key) -> Actor:
    """The actor of environment `index` (int32 scalar) of `count`, at FIRST. Consumes the key."""
    key, reset_key, memory_key = own_keys(key, index)
    state, timestep = environment.reset(reset_key)
    memory = agent.memory(params, rank(index, count), memory_key)
    return Actor(state, timestep, memory, key, index, jnp.zeros((), jnp.int32), episodes.begin())


class Streams(NamedTuple):
    """The random streams of a run."""

    params: Key
    actors: Key
    updates: Key


def streams(key: Key, life: int | Array = 0) -> Streams:
    """A run's random streams; actors whose environments were made anew have others. Consumes the key."""
    # Lives are not folded into `actors`, as environments are: life 1 would be environment 1.
    params, actors, updates, lives = jax.random.split(key, 4)
    again = jax.random.fold_in(lives, life)
    return Streams(params, jax.lax.select(jnp.asarray(life) > 0, again, actors), updates)


def own_keys(key: Key, index: Array) -> tuple[Key, Key, Key]:
    """The random stream of environment `index`, and the keys of its first reset and of the agent's memory."""
    stream, reset_key, memory_key = jax.random.split(jax.random.fold_in(key, index), 3)
    return stream, reset_key, memory_key


def rank(index: Array, count: int) -> Array:
    """i / (N - 1) as float32, 0 if alone: which of N environments, by which agents may differ in exploration."""
    return index.astype(jnp.float32) / max(count - 1, 1)


def unroll(
    agent: Agent, environment: Environment, params: Params, actors: Actor, length: int, version: Array
) -> tuple[Actor, Trajectory, episodes.Finished]:
    """T steps of many environments.

    Args:
        agent: acts with `agent.act`.
        environment: a single one; it is vmapped here.
        params: all groups, or those that `agent.reads` names.
        actors: Actor [E, ...].
        length: T.
        version: int32 scalar, updates behind `params`.

    Returns:
        Actors [E, ...], Trajectory [E, ...] and the sums over the episodes that finished.
    """
    act = jax.vmap(agent.act, (None, 0, 0, 0))
    move = jax.vmap(lambda *args: advance(environment, *args))

    # All keys of the unroll in one call: inside the loop each draw would pay for its own.
    steps = actors.step + jnp.arange(length, dtype=jnp.int32)[:, None]
    keys = jax.vmap(partial(act_keys, actors.key))(steps), jax.vmap(partial(step_keys, actors.key))(steps)

    def body(carry, keys):
        state, timestep, memory = carry
        act_key, step_key = keys
        memory, action, extras = act(params, memory, timestep, act_key)
        state, next_timestep = move(state, timestep, action, step_key)
        return (state, next_timestep, memory), (timestep, extras)

    carry = (actors.state, actors.timestep, actors.memory)
    carry, (timesteps, extras) = jax.lax.scan(body, carry, keys)
    state, timestep, memory = carry

    timesteps = jax.tree.map(lambda xs, x: jnp.concatenate([xs, x[None]]), timesteps, timestep)
    episode, finished = episodes.follow(actors.episode, timesteps.reward[1:], timesteps.step_type[1:])
    timesteps, extras = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (timesteps, extras))
    origin = Origin(
        actors.index, jnp.zeros_like(actors.index), actors.step, jnp.broadcast_to(version, actors.index.shape)
    )
    trajectory = Trajectory(actors.memory, timesteps, extras, origin)
    actors = Actor(state, timestep, memory, actors.key, actors.index, actors.step + length, episode)
    return actors, trajectory, finished


def act_keys(key: Key, step: Array) -> Key:
    """The keys that agents act with in environments [E] at their steps [E], whatever drives them."""
    return jax.vmap(jax.random.fold_in)(key, 2 * step.astype(jnp.uint32))


def step_keys(key: Key, step: Array) -> Key:
    """The keys of the environments' steps that follow, likewise."""
    return jax.vmap(jax.random.fold_in)(key, 2 * step.astype(jnp.uint32) + 1)


def reanalyse(agent: Agent, params: Params, memory: Memory, timesteps: TimeStep, keys: Key) -> tuple[Memory, Extras]:
    """Act again on the stored past of ONE environment.

    Args:
        agent: acts with `agent.act`; its actions are dropped, since what happened has happened.
        params: newer parameters than those that acted.
        memory: the memory before the first of these steps.
        timesteps: TimeStep [T, ...].
        keys: [T] keys; the keys of the first time give the same answers for the same parameters.

    Returns:
        The memory after the last step, and extras [T, ...].
    """

    def body(memory, step):
        timestep, key = step
        memory, _, extras = agent.act(params, memory, timestep, key)
        return memory, extras

    return jax.lax.scan(body, memory, (timesteps, keys))
