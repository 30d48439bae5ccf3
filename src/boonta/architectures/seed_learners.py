"""What learns in SEED: from each trajectory once, or from replay on the host."""

import itertools
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

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
from boonta.architectures.seed import Seed, Told
from boonta.architectures.seed_replay import Drawn, Feeder
from boonta.architectures.seed_threads import LIMIT, Asked, Failed, Threads
from boonta.core import devices, random
from boonta.core.agent import Agent
from boonta.core.types import Array, Params, PyTree, Trajectory
from boonta.replay.host import HostReplay
from boonta.replay.limiter import Limiter
from boonta.replay.windows import pace


class Passing:
    """On-policy: a chunk, or several, for an update.

    Args:
        agent: its learners run fused, in order.
        unit: Seed.
        size: trajectories of a chunk, over all hosts.
        there: learner devices, over all hosts.
        seed: of the run.
    """

    def __init__(self, agent: Agent, unit: Seed, size: int, there: Sequence[Any], seed: int) -> None:
        self.unit, self.seed = unit, seed
        self.learning = fused(agent, size, len(there))
        self.half = halves(agent, self.learning, unit.piece, len(unit.observed))
        self.updates = self.learning.updates
        self.steps = size * self.learning.rounds * unit.unroll  # of an iteration
        self.before = 0  # steps before the first iteration
        self._mesh = devices.mesh(list(there))
        self._ship = shipper(self._mesh)
        self._update: Any = updater(self.half, self._mesh)

    def init(self, settings: dict[str, Array]) -> State:
        """The state at the beginning."""
        return starter(self.half, self._mesh)(random.key(self.seed), settings)

    def compile(self, state: State) -> list[str]:
        """Compile all there is to compile; the names of the metrics that `health` may point to."""
        own = NamedSharding(self._mesh, P(devices.LEARNERS))
        shapes = jax.eval_shape(self.unit.chunk, {name: state.params[name] for name in self.unit.reads})
        whole = lambda s: (s.shape[0] * jax.process_count(), *s.shape[1:])  # noqa: E731
        chunk = jax.tree.map(lambda s: jax.ShapeDtypeStruct(whole(s), s.dtype, sharding=own), shapes)
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        lowered = self._update.lower(placed.params, tuple(placed[1:]), [chunk] * self.learning.rounds)
        self._update = lowered.compile()
        return metric_names(lowered.out_info[1])

    def iterate(self, state: State, threads: Threads) -> tuple[State, dict[str, Array], list[Told]]:
        """Take what one iteration needs, learn from it, and publish. The state given is used up.

        Raises:
            Failed: a thread died, or nothing came in time.
            Asked: the run is to end, and nothing came yet.
        """
        with threads.trace.span("wait for experience"):
            items = [_waited(threads, threads.take, threads.silence) for _ in range(self.learning.rounds)]
        with threads.trace.span("learn"), threads.watch.update():
            chunks = [self._ship(item.chunk) for item in items]
            state, metrics = self._update(state.params, tuple(state[1:]), chunks)
            jax.block_until_ready(metrics)
        with threads.trace.span("publish"):
            threads.publish(state.params, state.updates)
        return state, metrics, [told for item in items for told in item.told]

    def counts(self) -> dict[str, float]:
        """There is no replay."""
        return {}

    def arrays(self) -> AbstractContextManager[dict[str, np.ndarray]]:
        """There is no replay."""
        return nullcontext({})

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """There is no replay."""

    def stop(self) -> None:
        """Nothing runs."""


class Replaying:
    """From replay in the host's memory, of samples that were drawn ahead of time.

    Args:
        agent: with one learner.
        unit: Seed.
        replay: HostReplay of this host.
        limiter: Limiter.
        there: learner devices, over all hosts.
        seed: of the run.
        ahead: samples that are drawn before they are asked for.
        drawers: threads that draw.
    """

    def __init__(
        self, agent: Agent, unit: Seed, replay: HostReplay, limiter: Limiter, there: Sequence[Any], seed: int,
        ahead: int, drawers: int,
    ) -> None:  # fmt: skip
        check_memory(agent, unit.piece(jax.eval_shape(agent.init, jax.random.key(0))).memory)
        self.unit, self.replay, self.limiter, self.seed = unit, replay, limiter, seed
        self.ahead, self.drawers, self.updates = ahead, drawers, 1
        self.half = sampled(agent, len(unit.observed), replay.stack)
        before, steps = pace(replay.sizes, limiter.minimum, replay.batch, limiter.ratio)  # of this host
        self.before, self.steps = before * jax.process_count(), steps * jax.process_count()
        self._mesh = devices.mesh(list(there))
        self._update: Any = sampled_updater(self.half, self._mesh)
        self._feeder: Feeder | None = None
        self._told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._params: Params = {}  # the latest, on one device, and the updates behind them
        self._version = 0
        self._due: tuple[Any, Array] | None = None  # ids and priorities of the last update

    def init(self, settings: dict[str, Array]) -> State:
        """The state at the beginning."""
        return starter(self.half, self._mesh)(random.key(self.seed), settings)

    def compile(self, state: State) -> list[str]:
        """Compile all there is to compile; the names of the metrics that `health` may point to."""
        own = NamedSharding(self._mesh, P(devices.LEARNERS))
        piece = self.unit.piece({name: state.params[name] for name in self.unit.reads})
        batch = self.replay.batch * jax.process_count()
        shapes = sample_like(piece, self.replay.experience, batch, self.replay.stack)
        sample = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=own), shapes)
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        lowered = self._update.lower(placed.params, tuple(placed[1:]), sample)
        self._update = lowered.compile()
        return metric_names(lowered.out_info[1])

    def iterate(self, state: State, threads: Threads) -> tuple[State, dict[str, Array], list[Told]]:
        """Take a sample, learn from it, and publish. The state given is used up.

        Raises:
            Failed: a thread died, or nothing came in time.
            Asked: the run is to end, and nothing came yet.
        """
        feeder = self._fed(state, threads)
        with threads.trace.span("wait for samples"):
            drawn = _waited(threads, lambda: self._get(feeder), lambda: self._silence(threads))
        with threads.trace.span("learn"), threads.watch.update():
            state, metrics, priorities = self._update(state.params, tuple(state[1:]), drawn.sample)
            self._params, self._version = _here(state.params), self._version + 1
            self._revise()  # of the update before, while this one runs
            self._due = (drawn.ids, priorities)
            jax.block_until_ready(metrics)
        with threads.trace.span("publish"):
            threads.publish(state.params, state.updates)
        return state, metrics, [self._told.get() for _ in range(self._told.qsize())]

    def counts(self) -> dict[str, float]:
        """What to tell of the replay: windows in it, and how often each was sampled so far."""
        inserted = self.limiter.inserted - self.limiter.minimum
        ratio = self.limiter.sampled / inserted if inserted > 0 else float("nan")
        counted = {"replay/windows": float(len(self.replay)), "replay/samples_per_insert": ratio}
        return counted | ({"replay/reanalysed": self.replay.renewed()} if self.replay.experience.reanalyse else {})

    @contextmanager
    def arrays(self) -> Iterator[dict[str, np.ndarray]]:
        """The replay, and what was counted around it; meanwhile it stands still."""
        with self.limiter.still(), self.replay.arrays() as arrays:
            yield arrays | {"limiter": np.asarray([self.limiter.inserted, self.limiter.sampled])}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """What `arrays` gave, before the first iteration.

        Raises:
            ValueError, KeyError: a replay made otherwise.
        """
        self.replay.restore(arrays)
        self.limiter.inserted, self.limiter.sampled = (int(x) for x in arrays["limiter"])

    def stop(self) -> None:
        """End the threads around the replay."""
        if self._feeder:
            self._feeder.stop(LIMIT)

    def _silence(self, threads: Threads) -> str:
        waiting = f"; {self.limiter.waiting} waits" if self.limiter.waiting else ""
        counted = f"{self.limiter.inserted} windows inserted (minimum {self.limiter.minimum})"
        return f"{threads.silence()}; {counted}, {self.limiter.sampled} sampled{waiting}"

    def _fed(self, state: State, threads: Threads) -> Feeder:
        """The feeder, started with the first iteration."""
        if self._feeder is None:
            self._params, self._version = _here(state.params), int(state.updates)
            first, again = None, self._again() if self.replay.experience.reanalyse else None
            if self.half.first is not None:
                compiled = jax.jit(self.half.first)
                first = lambda windows: compiled(self._params, windows)  # noqa: E731

            def take() -> Trajectory | None:
                if (item := threads.take()) is None:
                    return None
                for one in item.told:
                    self._told.put(one)
                return item.chunk

            self._feeder = Feeder(
                self.replay, self.limiter, self._mesh, take, first, self.ahead, self.drawers, threads.trace, again
            )
            self._feeder.start()
        return self._feeder

    def _again(self) -> Callable[[Trajectory], tuple[PyTree, int]]:
        """Acts on stored pieces with the latest parameters, on one device."""
        act, keys = jax.jit(self.half.again), itertools.count()

        def again(past: Trajectory) -> tuple[PyTree, int]:
            version, params = self._version, self._params
            return act(params, past, jax.random.fold_in(random.key(self.seed), 1 << 31 | next(keys))), version

        return again

    def _get(self, feeder: Feeder) -> Drawn | None:
        if failure := feeder.failure():
            raise Failed(failure)
        return feeder.get()

    def _revise(self) -> None:
        if self._due is not None and self._due[1] is not None:
            ids, priorities = self._due
            self.replay.revise(ids, np.concatenate([np.asarray(x.data) for x in priorities.addressable_shards]))


def _here(params: Params) -> Params:
    """As one device of this host has them: hosts give first priorities each at its own time."""
    return jax.tree.map(lambda x: x.addressable_data(0), params)


def _waited(threads: Threads, take: Callable[[], Any], why: Callable[[], str]) -> Any:
    """What `take` gives, once it gives something; while clients are answered, that may take its time."""
    since, before = time.monotonic(), threads.answered()
    while time.monotonic() < since + threads.plan.timeout:
        threads.check()
        if (taken := take()) is not None:
            return taken
        if threads.asked():
            raise Asked
        if (now := threads.answered()) != before or (threads.plan.patient and not threads.playing()):
            since, before = time.monotonic(), now
    raise Failed(why())
