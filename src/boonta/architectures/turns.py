"""Learners that learn from the same replay, as one: what is drawn is shared out, and they update in turns."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import jax
import jax.numpy as jnp

from boonta.architectures.learning import repeat
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.settings import multiple_of
from boonta.core.trees import batch_size
from boonta.core.types import Array, Feedback, Key, Params, PyTree, Sample

MOST = 64  # updates of a turn


def together(agent: Agent) -> Agent:
    """The agent with the learners of each replay made into one, whose updates are turns of theirs.

    In a turn each learner makes as many updates as its samples per insert and its batch ask for, in lowest terms, one
    learner after the other. Its private state holds theirs by name.

    Args:
        agent: any; one whose learners all have their own experience comes back as it is.

    Raises:
        ValueError: updates that are in no ratio of small whole numbers, or learners that both write priorities.
    """
    groups: dict[Experience, list[str]] = {}
    for name, learner in agent.learners.items():
        groups.setdefault(_replay(name, learner.experience), []).append(name)
    if len(groups) == len(agent.learners):
        return agent
    learners: dict[str, Learner] = {}
    for names in groups.values():
        members = {name: agent.learners[name] for name in names}
        learners["_and_".join(names)] = _one(members) if len(members) > 1 else members[names[0]]
    return agent._replace(learners=learners)


def counts(learners: Mapping[str, Learner]) -> dict[str, int]:
    """Updates that each learner makes in a turn.

    Raises:
        ValueError: they are in no ratio of small whole numbers.
    """
    wanted = {
        name: Fraction(one.experience.samples_per_insert).limit_denominator(10_000) / one.experience.batch
        for name, one in learners.items()
    }
    whole = lcm(*(ratio.denominator for ratio in wanted.values()))
    numbers = {name: int(ratio * whole) for name, ratio in wanted.items()}
    common = gcd(*numbers.values())
    numbers = {name: number // common for name, number in numbers.items()}
    if sum(numbers.values()) > MOST:
        raise ValueError(
            f"updates of learners that share a replay must be in a ratio of whole numbers, at most {MOST} in all, not "
            f"{numbers}"
        )
    return numbers


def _replay(name: str, wanted: Experience) -> Experience:
    """What two learners must agree on to share a replay; on-policy learners share none."""
    if not wanted.capacity:
        return wanted._replace(sampler=name)
    return wanted._replace(batch=0, samples_per_insert=0.0, memory=False, trained_step=None, view=None)


def _one(members: dict[str, Learner]) -> Learner:
    updates = counts(members)
    wishes = {name: one.experience for name, one in members.items()}
    inserts = [one.insert for one in members.values() if one.insert is not None]
    if len(inserts) > 1:
        raise ValueError(f"at most one of {', '.join(members)} may write priorities, as they share a replay")
    owns = tuple(group for one in members.values() for group in one.owns)
    reads = tuple(dict.fromkeys(group for one in members.values() for group in one.reads if group not in owns))
    experience = next(iter(wishes.values()))._replace(
        batch=sum(updates[name] * wish.batch for name, wish in wishes.items()),
        samples_per_insert=sum(wish.samples_per_insert for wish in wishes.values()),
        memory=any(wish.memory for wish in wishes.values()),
        trained_step=next((wish.trained_step for wish in wishes.values() if wish.trained_step is not None), None),
        view=None,
    )

    def init(params: Params) -> dict[str, PyTree]:
        return {name: one.init(params) for name, one in members.items()}

    def update(
        states: dict[str, PyTree], params: Params, sample: Sample, key: Key
    ) -> tuple[dict[str, PyTree], Params, Feedback]:
        shards, at = experience.batch // batch_size(sample.weights), 0
        metrics: dict[str, Array] = {}
        priorities: list[Array] = []
        writers = 0
        for i, (name, one) in enumerate(members.items()):
            count, each = updates[name], _share(name, wishes[name].batch, shards)
            mine = _parts(_viewed(sample, one), at, count, each)
            at += count * each
            keys = jax.random.split(jax.random.fold_in(key, i), count)
            begin = (states[name], {group: params[group] for group in one.owns})
            (state, owned), feedback = repeat(_once(one, params), begin, count, (mine, keys))
            states, params = states | {name: state}, params | owned
            metrics |= jax.tree.map(lambda x: jnp.mean(x, axis=0), feedback.metrics)
            writes = feedback.priorities is not None
            writers += writes
            # What is not finite leaves the priority in replay as it is.
            said = feedback.priorities.reshape(-1) if writes else jnp.full(count * each, jnp.inf, jnp.float32)
            priorities.append(said)
        if writers > 1:
            raise ValueError(f"at most one of {', '.join(members)} may write priorities, as they share a replay")
        new = jnp.concatenate(priorities) if writers else None
        return states, {group: params[group] for group in owns}, Feedback(metrics, new)

    return Learner(owns, reads, experience, init, update, inserts[0] if inserts else None)


def _share(name: str, batch: int, shards: int) -> int:
    if batch % shards:
        raise ValueError(
            f"{name}'s batch must be a multiple of the number of devices, got {batch} and {shards}"
            f"{multiple_of(shards, batch)}"
        )
    return batch // shards


def _viewed(sample: Sample, learner: Learner) -> Sample:
    """With what the learner asks for of each trajectory."""
    trajectory, view = sample.trajectory, learner.experience.view
    if not learner.experience.memory:
        trajectory = trajectory._replace(memory=())
    return sample._replace(trajectory=trajectory if view is None else view(trajectory))


def _parts(sample: Sample, at: int, count: int, each: int) -> Sample:
    """So many samples [count, each, ...] out of one, from a place on."""
    return jax.tree.map(lambda x: x[at : at + count * each].reshape(count, each, *x.shape[1:]), sample)


def _once(learner: Learner, params: Params) -> Callable[..., Any]:
    def body(carry: tuple[PyTree, Params], xs: tuple[Sample, Key]) -> tuple[tuple[PyTree, Params], Feedback]:
        state, owned = carry
        state, owned, feedback = learner.update(state, params | owned, *xs)
        return (state, owned), feedback

    return body
