"""Who there is in a fleet (MooZi, sections 5.2.12 to 5.2.17). Each only answers calls; `fleet` says what is done when.

All that goes in and out are NumPy arrays.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures import sebulba
from boonta.architectures.learner import (
    State,
    halves,
    metric_names,
    sample_like,
    sampled,
    sampled_updater,
    shipper,
    starter,
    updater,
)  # fmt: skip
from boonta.architectures.learning import check_memory, fused
from boonta.architectures.sebulba_compiled import acting_on
from boonta.core import acting, devices, nests, random
from boonta.core.agent import Agent
from boonta.core.faults import Guard
from boonta.core.host import Host, Workers
from boonta.core.types import Ids, Params, PyTree, Sample, Trajectory
from boonta.core.watch import Watch
from boonta.replay.host import HostReplay


class Parts(NamedTuple):
    """What members are made of; each makes its own.

    Attributes:
        agent: Agent.
        host: the environments.
        play: (params, episodes) -> the scores of greedy episodes.
        watch: of the updates that a member makes; None for one of its own.
    """

    agent: Agent
    host: Host
    play: Callable[[Params, int], Any]
    watch: Watch | None = None


Make = Callable[[], Parts]


class Told(NamedTuple):
    """About a batch of trajectories: the episodes that finished in it, its health, and the seconds that it took."""

    finished: Any
    bad: Any
    seconds: float


class Rollout:
    """A training worker: environments of its own, acted in with a delayed copy of the parameters.

    Args:
        make: Parts.
        first: global index of its first environment.
        envs: how many it has.
        everyone: how many there are over all workers.
        life: of its environments.
        seed: of the run.
        workers: what steps its environments.
        finite: whether an observation or reward that is not finite is a fault.
    """

    def __init__(
        self, make: Make, first: int, envs: int, everyone: int, life: int, seed: int, workers: Workers, finite: bool
    ) -> None:
        self.agent, self.host, *_ = make()
        self.index = np.arange(first, first + envs, dtype=np.int32)
        self.life, self.seed = life, seed
        actor, params = sebulba.acts(self.agent, self.host.spec), jax.eval_shape(self.agent.init, jax.random.key(0))
        read = {name: params[name] for name in actor.reads}
        self._unroll, self._reads = actor.unroll, actor.reads
        self._compiled = acting_on(actor, self.host.spec, read, envs, everyone, jax.devices()[0])
        self._make = lambda: self.host.make(self.index, seed, life, workers)
        self._finite = finite
        self._given: Params | None = None
        self._held: Params = {}
        self._going: tuple[Guard, Any, Any] | None = None

    def ready(self) -> None:
        """It is, once it answers."""

    def run(self, params: Params, version: int, moved: Callable[[], None] = lambda: None) -> tuple[Trajectory, Told]:
        """One piece of every environment, Trajectory [E, ...]; parameters that are new come as another dictionary.

        `moved` is called after every step.
        """
        since = time.perf_counter()
        if params is not self._given:  # once, not at every step
            read = {name: params[name] for name in self._reads}
            self._given, self._held = params, jax.device_put(read, jax.devices()[0])
        environments, slot, timestep = self._going or self._begin(self._held)
        for _ in range(self._unroll):
            slot, action = self._compiled.act(self._held, np.int32(version), slot, timestep)
            timestep = environments.step(np.asarray(action))
            moved()
        slot, *made = self._compiled.close(slot, timestep)
        self._going = environments, slot, timestep
        trajectory, finished, bad = jax.device_get(made)
        return trajectory, Told(finished, bad, time.perf_counter() - since)

    def _begin(self, params: Params) -> tuple[Guard, Any, Any]:
        environments = Guard(self._make, self._finite, _warn)
        timestep = environments.reset()
        key = acting.streams(random.key(self.seed), self.life).actors
        return environments, self._compiled.begin(params, key, self.index, np.int32(self.life)), timestep

    def close(self) -> None:
        """Close the environments, in the thread that has stepped them."""
        if self._going:
            self._going[0].__exit__()
            self._going = None


@functools.cache  # once each
def _warn(told: str) -> None:
    print(f"boonta: WARNING: {told}", file=sys.stderr)


class Testing:
    """A testing worker."""

    def __init__(self, make: Make) -> None:
        self._parts = make()

    def ready(self) -> None:
        """It is, once it answers."""

    def play(self, params: Params, episodes: int) -> Any:
        """The scores of greedy episodes."""
        return self._parts.play(params, episodes)


class Reanalysis:
    """A reanalyse worker: acts again on stored pieces.

    Args:
        make: Parts.
        seed: of its chance, two integers.
    """

    def __init__(self, make: Make, seed: tuple[int, int]) -> None:
        agent, host, *_ = make()
        self._again = jax.jit(sampled(agent, 0, host.spec.stack).again)
        self._key = jax.random.fold_in(random.key(seed[0]), seed[1])
        self._count = 0

    def ready(self) -> None:
        """It is, once it answers."""

    def again(self, params: Params, past: tuple[Ids, Trajectory]) -> tuple[tuple[Ids, PyTree], None]:
        """New extras of pieces [n], and which pieces those are."""
        ids, pieces = past
        self._count += 1
        extras = self._again(params, pieces, jax.random.fold_in(self._key, self._count))
        return (ids, jax.device_get(extras)), None


class Memory:
    """The replay buffer, and what was counted of it.

    Args:
        make: Parts.
        batch: windows of a sample.
        capacity: windows that are kept, those that wait for their last pieces included.
        compress: keep observations compressed.
        seed: of what is drawn, two integers.
    """

    def __init__(self, make: Make, batch: int, capacity: int, compress: bool, seed: tuple[int, int]) -> None:
        agent, host, *_ = make()
        ((_, learner),) = agent.learners.items()
        example = sebulba.acts(agent, host.spec).piece(jax.eval_shape(agent.init, jax.random.key(0)))
        check_memory(agent, example.memory)
        self.replay = HostReplay(learner.experience, batch, capacity, example, host.spec.stack, compress, seed)
        first = sampled(agent, 0, host.spec.stack).first
        self._first = first and jax.jit(first)
        self._counts = np.zeros(2, np.int64)  # windows inserted, windows sampled

    def ready(self) -> None:
        """It is, once it answers."""

    def insert(self, chunk: Trajectory, params: Params) -> tuple[int, int]:
        """Pieces [E] of as many environments; the windows that are complete with them, and all that are there."""
        count = len(chunk.origin.environment)
        ids = [self.replay.insert(nests.mapped(lambda x, i=i: x[i], chunk)) for i in range(count)]
        complete = nests.mapped(lambda *parts: np.concatenate(parts), ids[0], *ids[1:])
        self._prioritize(complete, count, params)
        self._counts[0] += len(complete.place)
        return len(complete.place), len(self.replay)

    def sample(self) -> tuple[Sample, None]:
        """Windows, packed."""
        self._counts[1] += self.replay.batch
        return self.replay.sample(), None

    def revise(self, feedback: tuple[Ids, np.ndarray | None]) -> None:
        """New priorities, if there are any."""
        ids, priorities = feedback
        if priorities is not None:
            self.replay.revise(ids, priorities)

    def past(self, count: int) -> tuple[tuple[Ids, Trajectory], None]:
        """Pieces to act on again."""
        return self.replay.past(count), None

    def renew(self, again: tuple[Ids, PyTree], version: int, params: Params) -> float:
        """What acting again gave; the share of the pieces that has been renewed."""
        ids, extras = again
        self._prioritize(self.replay.renew(ids, extras, version), len(ids.place), params)
        return self.replay.renewed()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything there is."""
        with self.replay.arrays() as arrays:
            return {name: np.array(x) for name, x in arrays.items()} | {"counts": self._counts.copy()}

    def restore(self, arrays: dict[str, np.ndarray]) -> tuple[int, int, int]:
        """What `arrays` gave; the windows that were inserted, those sampled, and those that are there.

        Raises:
            ValueError, KeyError: a replay made otherwise.
        """
        self.replay.restore(arrays)
        self._counts = np.array(arrays["counts"])
        inserted, sampled = self._counts
        return int(inserted), int(sampled), len(self.replay)

    def _prioritize(self, ids: Ids, pieces: int, params: Params) -> None:
        if (count := len(ids.place)) and self._first:
            padded = nests.mapped(lambda x: np.resize(x, pieces * self.replay.sizes.each), ids)
            self.replay.revise(ids, np.asarray(self._first(params, self.replay.window(padded)))[:count])


class ParameterServer:
    """Owns the parameters, and makes all updates; nothing of it can be asked for before `restore`.

    Args:
        make: Parts.
        chunk: trajectories that come at a time where each is learned from once; 0 for learning from samples.
        batch: windows of a sample, otherwise.
        count: devices of its process to use; 0 for all.
    """

    def __init__(self, make: Make, chunk: int, batch: int, count: int) -> None:
        agent, host, _, watch = make()
        self._watch = watch or Watch()
        actor, here = sebulba.acts(agent, host.spec), jax.devices()[: count or None]
        self._chunk, self._mesh = chunk, devices.mesh(here)
        params = jax.eval_shape(agent.init, jax.random.key(0))
        piece = actor.piece(params)
        if chunk:
            learning = fused(agent, chunk, len(here), stack=host.spec.stack)
            half: Any = halves(agent, learning, actor.piece, len(actor.observed))
            self._update: Any = updater(half, self._mesh)
            self._ship = shipper(self._mesh)
            one = jax.tree.map(lambda s: jax.ShapeDtypeStruct((chunk, *s.shape), s.dtype), piece)
            self._experience: Any = [one] * learning.rounds
            self._sent = agent.reads
        else:
            half = sampled(agent, len(actor.observed), host.spec.stack)
            self._update = sampled_updater(half, self._mesh)
            ((_, learner),) = agent.learners.items()
            self._experience = sample_like(piece, learner.experience, batch, host.spec.stack)
            self._sent = agent.reads if half.first is None else tuple(params)
        self._state: State = starter(half, self._mesh)(random.key(0), {})

    def ready(self) -> list[str]:
        """Compile; the names of the metrics that `health` may point to."""
        apart = NamedSharding(self._mesh, P(devices.LEARNERS))
        experience = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=apart), self._experience)
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self._state)
        lowered = self._update.lower(placed.params, tuple(placed[1:]), experience)
        self._update = lowered.compile()
        return metric_names(lowered.out_info[1])

    def restore(self, state: State) -> None:
        """Go on from a state, of which keys are bare numbers."""
        whole = random.with_keys(state, self._state)
        self._state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), whole, self._state)

    def state(self) -> State:
        """All of it, of keys the bare numbers."""
        return jax.device_get(random.without_keys(self._state))

    def params(self) -> tuple[Params, int]:
        """What the others need, and the updates behind it."""
        read = {name: self._state.params[name] for name in self._sent}
        return jax.device_get((read, self._state.updates))

    def learn(self, sample: Sample) -> tuple[tuple[Ids, np.ndarray | None], dict[str, Any]]:
        """From a sample: the priorities that come of it, if any, and metrics."""
        since, state = time.perf_counter(), self._state
        with self._watch.update():
            self._state, metrics, priorities = self._update(state.params, tuple(state[1:]), sample)
            found = self._told(metrics, since)
        return (sample.ids, None if priorities is None else np.asarray(priorities)), found

    def learn_once(self, *chunks: Trajectory) -> dict[str, Any]:
        """From trajectories [E, ...] of workers, which nobody learns from again: metrics."""
        since, state = time.perf_counter(), self._state
        each = self._chunk // len(chunks[0].origin.environment)
        groups = [chunks[i : i + each] for i in range(0, len(chunks), each)]
        whole = [nests.mapped(lambda *parts: np.concatenate(parts), one, *others) for one, *others in groups]
        with self._watch.update():
            self._state, metrics = self._update(state.params, tuple(state[1:]), [self._ship(batch) for batch in whole])
            return self._told(metrics, since)

    def _told(self, metrics: PyTree, since: float) -> dict[str, Any]:
        """Metrics, the seconds that they took, and the version of the parameters after them."""
        version = int(self._state.updates)
        return jax.device_get(metrics) | {"seconds": time.perf_counter() - since, "version": version}
