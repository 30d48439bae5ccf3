"""Which devices act and which learn, and with how many threads: predicted from what was measured, with the reasons."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.learner import starter, updater
from boonta.architectures.sebulba import Sebulba
from boonta.architectures.sebulba_compiled import acting_on
from boonta.core import acting, devices, host, random
from boonta.core.faults import Unclosed
from boonta.core.host import Batch
from boonta.core.spec import Spec

SECONDS = 0.5  # of each measurement, compilation apart


class Split(NamedTuple):
    """A way to share the devices of a host.

    Attributes:
        actors: how many devices act.
        learners: how many learn.
        threads: of each actor device.
        envs: environments of a thread.
        both: whether the devices that act are those that learn.
    """

    actors: int
    learners: int
    threads: int
    envs: int
    both: bool


class Times(NamedTuple):
    """What was measured on one host.

    Attributes:
        alone: environment steps a second where one thread steps its batch.
        together: the same of two threads with a batch each.
        act: seconds of acting in E environments, by E.
        learn: seconds of one iteration's learning, by the number of learner devices.
        steps: environment steps of one iteration.
        shared: whether devices and environments share the same cores, as they do on a CPU.
    """

    alone: float
    together: float
    act: dict[int, float]
    learn: dict[int, float]
    steps: int
    shared: bool


class Prediction(NamedTuple):
    """Steps a second: of each part if the others took no time, and of the whole."""

    environments: float
    acting: float
    learning: float
    whole: float


def predict(split: Split, times: Times) -> Prediction:
    """What a split would do.

    A thread steps its environments, then acts; others of its device act meanwhile. Where a device plays both parts, or
    all of them share the cores, times add up; elsewhere the slowest part decides.
    """
    act = times.act[split.envs]
    crowd = split.actors * split.threads
    environments = times.alone if crowd == 1 else max(times.alone, times.together)
    acting_alone = split.actors * split.envs / act
    cycle = act + split.envs / times.alone
    turning = min(acting_alone, crowd * split.envs / cycle)
    learning = times.steps / _learn(split.learners, times.learn)
    if times.shared:
        whole = 1 / (1 / environments + 1 / acting_alone + 1 / learning)
    elif split.both:
        whole = min(environments, turning, 1 / (1 / acting_alone + 1 / learning))
    else:
        whole = min(environments, turning, learning)
    return Prediction(environments, acting_alone, learning, whole)


def _learn(count: int, known: dict[int, float]) -> float:
    """Seconds on so many devices: measured, or a + b / count through the fewest and the most."""
    if count in known:
        return known[count]
    few, most = min(known), max(known)
    b = (known[few] - known[most]) / (1 / few - 1 / most)
    return known[most] + b * (1 / count - 1 / most)


def choose(splits: Sequence[Split], times: Times) -> tuple[Split, str]:
    """The split that should be fastest (of those within 2 % the one with the fewest threads and actors), and why."""
    made = {split: predict(split, times) for split in splits}
    best = max(one.whole for one in made.values())
    split = min(
        (split for split in splits if made[split].whole >= 0.98 * best),
        key=lambda split: (split.threads * split.actors, -split.learners),
    )
    one = made[split]
    devices = f"{split.actors} devices act" if split.actors > 1 else "1 device acts"
    others = "the same learn" if split.both else f"{split.learners} learn{'s' * (split.learners == 1)}"
    threads = f"{split.threads} thread{'s' * (split.threads > 1)} of {split.envs} environments"
    why = (
        f"{devices} ({threads} each), {others}; alone, acting would make {one.acting:,.0f} steps/s, "
        f"learning {one.learning:,.0f}, environments {one.environments:,.0f}"
        f"{' (all on the same cores)' * times.shared}; together {one.whole:,.0f}, the best of {len(made)} ways"
    )
    return split, why


def candidates(
    count: int, envs_of: Callable[[int], int | None], divides: Callable[[int, int], bool], shared: bool
) -> list[Split]:
    """Splits of so many devices.

    Args:
        count: devices.
        envs_of: actor threads -> environments of each, or None if they cannot share the batch.
        divides: (environments of a thread, learner devices) -> whether that can be.
        shared: virtual devices of one CPU, of which only one thread of one is of use.
    """
    pairs = [(n, n, True) for n in ([1] if shared else range(1, count + 1))]
    if not shared:
        pairs += [(actors, learners, False) for actors in range(1, count) for learners in range(1, count - actors + 1)]
    splits = []
    for actors, learners, both in pairs:
        for threads in [1] if shared else [1, 2, 4]:
            envs = envs_of(actors * threads)
            if envs and divides(envs, learners):
                splits.append(Split(actors, learners, threads, envs, both))
    return splits


def measure(
    splits: Iterable[Split],
    there: Sequence[Any],
    unit_of: Callable[[int, int], Sebulba],
    spec: Spec,
    make: Callable[[np.ndarray], Batch],
    steps: int,
    shared: bool,
) -> Times:
    """Time what the splits are made of.

    Args:
        splits: that are to be compared.
        there: the devices of this host that they share.
        unit_of: (environments of a thread, learner devices) -> what is compiled.
        spec: the environment's.
        make: indices -> a batch of environments.
        steps: environment steps of an iteration, over all hosts; as `unit_of` knows but one, learning takes all of them
            here, and the speed that comes out is that of one host's share.
        shared: as in `Times`.
    """
    splits = list(splits)
    acts = {
        envs: _repeated(acting_alone(unit_of(envs, 1), spec, envs, there[0])) for envs in {one.envs for one in splits}
    }
    counts = {one.learners: one.envs for one in splits}
    ends = {min(counts), max(counts)}
    learns = {n: _repeated(learning_alone(unit_of(counts[n], n), spec, counts[n], there[-n:])) for n in ends}
    envs = max(acts)
    alone, together = (_time_environments(spec, make, envs, threads) for threads in (1, 2))
    return Times(alone, together, acts, learns, steps, shared)


def _repeated(what: Callable[[], Any]) -> float:
    """Seconds of one call, the median of those that fit in a while; the first is not counted."""
    what()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(taken) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def acting_alone(unit: Sebulba, spec: Spec, envs: int, device: Any) -> Callable[[], None]:
    """A step of acting on one device, its observations handed over and its actions taken back, again and again."""
    params = jax.jit(unit.learner.init)(jax.device_put(random.key(0), device), {}).params
    params = {name: params[name] for name in unit.actor.reads}
    compiled = acting_on(unit.actor, spec, params, envs, envs, device)
    timestep = host.empty(spec, envs)
    index, zero = np.arange(envs, dtype=np.int32), np.int32(0)
    key = acting.streams(random.key(0), 0).actors
    held = [compiled.begin(params, jax.device_put(key, device), index, zero)]

    def act() -> None:
        held[0], action = compiled.act(params, zero, held[0], timestep)
        np.asarray(action)

    return act


def learning_alone(unit: Sebulba, spec: Spec, envs: int, there: Sequence[Any]) -> Callable[[], None]:
    """An iteration of learning on these devices, on the same trajectories again and again."""
    mesh = devices.mesh(list(there))
    state = starter(unit.learner, mesh)(random.key(0), {})
    params = {name: state.params[name] for name in unit.actor.reads}
    shapes = acting_on(unit.actor, spec, params, envs, envs, there[0]).trajectory
    ones = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), shapes)
    batches = [jax.device_put(ones, NamedSharding(mesh, P(devices.LEARNERS))) for _ in range(unit.learning.rounds)]
    held, update = [state], updater(unit.learner, mesh)

    def learn() -> None:
        held[0], metrics = update(held[0].params, tuple(held[0][1:]), batches)
        jax.block_until_ready(metrics)

    return learn


def _time_environments(spec: Spec, make: Callable[[np.ndarray], Batch], envs: int, threads: int) -> float:
    """Steps a second of all threads together."""
    batches = [make(np.arange(envs, dtype=np.int32) + i * envs) for i in range(threads)]

    def go(which: int) -> float:
        return _repeated(host.at_random(spec, batches[which], np.random.default_rng(which)))

    try:
        with ThreadPoolExecutor(threads) as pool:
            return sum(envs / seconds for seconds in pool.map(go, range(threads)))
    finally:
        for batch in batches:
            with suppress(Unclosed):  # the trial has told of it
                batch.close()
