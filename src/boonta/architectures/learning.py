"""All learners of an agent on the trajectories of one iteration: what architectures with fused learning share."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.agent import Agent, Experience
from boonta.core.types import Array, Key, Params, PyTree, Trajectory, batch_size
from boonta.replay.once import once


class Learning(NamedTuple):
    """One iteration of learning, on one device.

    Attributes:
        length: T, steps of a trajectory.
        rounds: pieces of experience, each of all environments once, that an iteration takes.
        updates: updates that an iteration makes.
        lag: mean over these of the updates made since the iteration began.
        empty: the shapes of one trajectory -> replay that holds nothing.
        insert: (replay, Trajectory [E, ...]) -> replay.
        learn: (params, learners' states, replay, key) -> (params, learners' states, metrics).
    """

    length: int
    rounds: int
    updates: int
    lag: float
    empty: Callable[[Trajectory], PyTree]
    insert: Callable[[PyTree, Trajectory], PyTree]
    learn: Callable[[Params, dict[str, PyTree], PyTree, Key], tuple[Params, dict[str, PyTree], dict[str, Array]]]


def initial(agent: Agent, key: Key, settings: dict[str, Array]) -> tuple[Params, dict[str, PyTree]]:
    """An agent's parameters, with these in place of some of its settings, and its learners' private states."""
    params = agent.init(key)
    if settings:
        params = params | {"settings": params["settings"] | settings}
    return params, {name: learner.init(params) for name, learner in agent.learners.items()}


def fused(agent: Agent, envs: int, shards: int) -> Learning:
    """The learners of an agent, in order, each on every trajectory once.

    Args:
        agent: on-policy learners only.
        envs: environments of a piece of experience, over all learner devices.
        shards: learner devices.

    Raises:
        ValueError: environments or a batch that devices, or each other, do not divide; replay that is not on-policy.
    """
    length = _length(agent)
    batches = {name: learner.experience.batch for name, learner in agent.learners.items()}
    numbers = {"environments (architecture.envs)": envs, **{f"{k}'s batch": n for k, n in batches.items()}}
    for what, n in numbers.items():
        if n % shards:
            raise ValueError(f"the number of {what} must be a multiple of the number of devices, got {n} and {shards}")
    for name, batch in batches.items():
        if envs % batch and batch % envs:
            raise ValueError(f"{name}'s batch and architecture.envs must divide one another, got {batch} and {envs}")
    rounds = math.lcm(envs, *batches.values()) // envs
    replays = {name: once(envs // shards * rounds, batch // shards) for name, batch in batches.items()}

    def empty(example: Trajectory) -> PyTree:
        return {name: replay.init(example) for name, replay in replays.items()}

    def insert(stored: PyTree, trajectories: Trajectory) -> PyTree:
        priorities = jnp.ones(batch_size(trajectories), jnp.float32)
        return {name: replays[name].insert(stored[name], trajectories, priorities) for name in replays}

    def learn(
        params: Params, states: dict[str, PyTree], stored: PyTree, key: Key
    ) -> tuple[Params, dict[str, PyTree], dict[str, Array]]:
        learned, metrics = {}, {}
        for i, (name, learner) in enumerate(agent.learners.items()):

            def one(carry, key, name=name, learner=learner):
                stored, params, private = carry
                sample_key, update_key = jax.random.split(key)
                stored, sample = replays[name].sample(stored, sample_key)
                private, owned, feedback = learner.update(private, params, sample, update_key)
                return (stored, params | owned, private), feedback

            n = envs * rounds // batches[name]
            keys = jax.random.split(jax.random.fold_in(key, i), n)
            (_, params, learned[name]), feedback = repeat(one, (stored[name], params, states[name]), n, keys)
            metrics |= jax.tree.map(jnp.mean, feedback.metrics)
        return params, learned, metrics

    counts = [envs * rounds // batch for batch in batches.values()]
    lag = sum(n * (n - 1) / 2 for n in counts) / sum(counts)
    return Learning(length, rounds, sum(counts), lag, empty, insert, learn)


def _length(agent: Agent) -> int:
    """The length of the trajectories that all learners want.

    Raises:
        ValueError: lengths that differ, or a wish that on-policy learning on devices does not grant.
    """
    lengths = {name: learner.experience.length for name, learner in agent.learners.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"all learners must have the same experience.length, got {lengths}")
    for name, learner in agent.learners.items():
        wanted, granted = learner.experience, Experience(learner.experience.length, learner.experience.batch)
        for field in Experience._fields:
            if getattr(wanted, field) != getattr(granted, field):
                raise ValueError(
                    f"{name}'s experience.{field} must be {getattr(granted, field)!r} (on-policy), "
                    f"got {getattr(wanted, field)!r}"
                )
        if learner.insert is not None:
            raise ValueError(f"{name}'s insert must be None (on-policy)")
    return lengths.popitem()[1]


def repeat(body: Callable, carry: PyTree, n: int, xs: PyTree = None) -> tuple[PyTree, PyTree]:
    """A scan, spelt out where it has a single step."""
    if n > 1:
        return jax.lax.scan(body, carry, xs, length=n)
    carry, y = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda x: x[None], y)
