"""An agent is one way of acting and some ways of learning."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from boonta.core.types import Action, Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep, Trajectory

State = PyTree


class Experience(NamedTuple):
    """What a learner wants to learn from.

    Attributes:
        length: T, steps of a trajectory.
        batch: trajectories in one update, over ALL devices and hosts.
        period: steps between the starts of neighbouring trajectories of one environment; 0 for `length`: no overlap.
        unroll: steps that are acted, and stored, at a time: a multiple of `period`, 0 for that itself. A memory is kept
            only where they begin.
        minimum: trajectories in replay before learning starts.
        capacity: trajectories that replay keeps; 0 for one that hands out each trajectory exactly once (on-policy).
        sampler: how replay draws: `once`; `uniform`; `prioritized`, in proportion to the priority; `ranked`, to the
            inverse of its rank (Schaul et al. 2015).
        samples_per_insert: how often a trajectory is drawn on average; 1 on-policy.
        priority_exponent: alpha, of the priority or of the inverse rank.
        importance_exponent: beta, of the weights (N P(i))^-beta that make up for it.
        reanalyse: stored steps that are acted on again with newer parameters, for each step that is acted; their extras
            take the place of the old ones.
        memory: whether the update needs the memory from before the first step; if not, windows come without one.
        trained_step: the one step of a trajectory that is learned from. Where it is LAST there is nothing to learn, and
            `prioritized` and `ranked` never draw the trajectory. None where several are learned from.
        view: what of a trajectory the learner needs; None for all of it.
    """

    length: int
    batch: int
    period: int = 0
    unroll: int = 0
    minimum: int = 0
    capacity: int = 0
    sampler: str = "once"
    samples_per_insert: float = 1.0
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    reanalyse: float = 0.0
    memory: bool = True
    trained_step: int | None = None
    view: Callable[[Trajectory], Trajectory] | None = None


class Learner(NamedTuple):
    """One way of learning: a pure update of the parameter groups it owns.

    Attributes:
        owns: groups it writes, disjoint between the learners of an agent.
        reads: groups that it may see stale.
        experience: Experience.
        init: params -> state (optimiser, targets), private to the learner.
        update: (state, params, sample, key) -> (state, owned groups, Feedback). Consumes the key, which differs
            per device: whatever reaches parameters or state has gone through `core.devices.average`.
        insert: (params, trajectory) -> float32 [], the priority of a trajectory that enters replay; None for the
            highest so far.
    """

    owns: tuple[str, ...]
    reads: tuple[str, ...]
    experience: Experience
    init: Callable[[Params], State]
    update: Callable[[State, Params, Sample, Key], tuple[State, Params, Feedback]]
    insert: Callable[[Params, Trajectory], Array] | None = None


class Agent(NamedTuple):
    """Made by a factory `agent(spec, settings) -> Agent`; knows nothing of devices.

    Attributes:
        init: key -> params, a dict of named groups. Consumes the key.
        memory: (params, rank, key) -> memory of ONE environment of rank i/(N-1), 0 if alone; () for none.
        act: (params, memory, timestep, key) -> (memory, action, extras) for ONE environment. Runs exactly once per
            time step and resets its memory at FIRST. Consumes the key.
        exploit: the same signature, for evaluation: greedy.
        reads: the groups that `act` needs, all that actors ever download.
        learners: by name, in the order they run when fused.
    """

    init: Callable[[Key], Params]
    memory: Callable[[Params, Array, Key], Memory]
    act: Callable[[Params, Memory, TimeStep, Key], tuple[Memory, Action, Extras]]
    exploit: Callable[[Params, Memory, TimeStep, Key], tuple[Memory, Action, Extras]]
    reads: tuple[str, ...]
    learners: Mapping[str, Learner]


def check(agent: Agent, params: Params) -> None:
    """Hold an agent to the law of ownership.

    Args:
        agent: the agent.
        params: what its `init` returned, or the shapes of that.

    Raises:
        ValueError: a group is owned twice, or read or owned without existing.
    """
    owners: dict[str, str] = {}
    for name, learner in agent.learners.items():
        for group in learner.owns:
            if group in owners:
                raise ValueError(
                    f"parameter group {group!r} is owned by the learners {owners[group]!r} and {name!r}; only one may"
                )
            owners[group] = name
        missing = (set(learner.owns) | set(learner.reads)) - set(params)
        if missing:
            raise ValueError(f"learner {name!r} names the groups {sorted(missing)}, but init made {sorted(params)}")
    if missing := set(agent.reads) - set(params):
        raise ValueError(f"the agent reads the groups {sorted(missing)}, but init made {sorted(params)}")
