"""What moves in Sebulba: actor threads, their queues, and the learner that takes from them and publishes."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.sebulba import Sebulba, Slot, State
from boonta.core import acting, devices, episodes, health, host, random
from boonta.core.environment import Spec
from boonta.core.host import Batch
from boonta.core.trace import Trace
from boonta.core.types import Array, Params, PyTree, TimeStep, Trajectory, batch_size

LIMIT = 10.0  # seconds that an ending run waits for a thread


class Plan(NamedTuple):
    """Who does what on one host.

    Attributes:
        actors: devices that act; may be learners too.
        learners: devices that learn, over all hosts.
        threads: on each actor device, each with a batch of environments of its own.
        envs: environments of a thread.
        lag: most iterations of learning that the parameters which begin a trajectory may be behind those that learn
            from it; 0 waits for every update, and makes a run that can be repeated.
        restarts: how often batches of environments may fail, together, before the run does.
        timeout: seconds without experience after which the run fails.
        finite: whether an observation or reward that is not finite counts as a failure of its environments.
    """

    actors: Sequence[Any]
    learners: Sequence[Any]
    threads: int
    envs: int
    lag: int = 1
    restarts: int = 0
    timeout: float = 120.0
    finite: bool = False


class Failed(RuntimeError):
    """A thread died, or nothing came; the message says which, with the traceback."""


class Broken(RuntimeError):
    """A batch of environments failed; it may be made anew."""


class Item(NamedTuple):
    """What an actor thread hands over: trajectories on the learner devices, what finished in them, and their health."""

    trajectory: Trajectory
    finished: episodes.Finished
    bad: Array


class Threads:
    """Actor threads, and the learner's side of their queues.

    Args:
        unit: Sebulba.
        make: (indices [E], life) -> a batch of environments.
        plan: Plan.
        seed: of the environments' random streams.
        trace: where spans of time go.
    """

    def __init__(
        self, unit: Sebulba, make: Callable[[np.ndarray, int], Batch], plan: Plan, seed: int, trace: Trace
    ) -> None:
        self.unit, self.make, self.plan, self.seed, self.trace = unit, make, plan, seed, trace
        self.placed = [device for device in plan.actors for _ in range(plan.threads)]
        self.queues: list[queue.SimpleQueue[Item]] = [queue.SimpleQueue() for _ in self.placed]
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.life = 0  # of the environments that were made anew most often
        self.restarted = 0  # how often any were
        self._mesh = devices.mesh(list(plan.learners))
        self._ship = _shipper(self._mesh)
        self._update: Any = updater(unit, self._mesh)
        self._everyone = jax.process_count() * len(self.placed) * plan.envs
        self._acting: dict[Any, Acting] = {}
        self._threads: list[threading.Thread] = []
        self._latest: dict[Any, tuple[Params, np.ndarray]] = {}
        self._learned = 0  # iterations that the parameters in `_latest` stand for, counted from `start`
        self._taken = 0
        self._made = [0] * len(self.placed)
        self._failure: str | None = None
        self._stopping = False
        self._changed = threading.Condition()

    def init(self, settings: dict[str, Array] | None = None) -> State:
        """The state at the beginning, on all learner devices; `settings` as in `Sebulba.init`."""
        make = jax.jit(self.unit.init, out_shardings=NamedSharding(self._mesh, P()))
        return make(random.key(self.seed), settings or {})

    def compile(self, state: State, spec: Spec) -> list[str]:
        """Compile all there is to compile; the names of the metrics that `health` may point to."""
        here = jax.tree.map(_shape, {name: state.params[name] for name in self.unit.reads})
        for device in self.plan.actors:
            self._acting[device] = acting_on(self.unit, spec, here, self.plan.envs, self._everyone, device)
        trajectory = self._acting[self.plan.actors[0]].trajectory
        own, replicated = NamedSharding(self._mesh, P(devices.LEARNERS)), NamedSharding(self._mesh, P())

        def spread(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            whole = (shape.shape[0] * jax.process_count(), *shape.shape[1:])
            return jax.ShapeDtypeStruct(whole, shape.dtype, sharding=own)

        batches = [jax.tree.map(spread, trajectory)] * self.unit.learning.rounds
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), state)
        lowered = self._update.lower(placed.params, tuple(placed[1:]), batches)
        self._update = lowered.compile()
        _, metrics = lowered.out_info
        return health.names({key: value for key, value in metrics.items() if not key.startswith("policy_lag")})

    def start(self, state: State, life: int = 0) -> None:
        """Set the actors going with these parameters, their environments in this life."""
        self._publish(state, 0)
        self.life = life
        for which in range(len(self.placed)):
            thread = threading.Thread(target=self._guarded, args=(which, life), name=f"actor {which}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def iterate(self, state: State) -> tuple[State, dict[str, Array], list[Item]]:
        """Take what one iteration needs, learn from it, and publish. The state given is used up.

        Raises:
            Failed: an actor thread died, or nothing came in time.
        """
        with self.trace.span("wait for experience"):
            items = [self._take() for _ in range(self.unit.learning.rounds)]
        with self.trace.span("learn"):
            state, metrics = self._update(state.params, tuple(state[1:]), [item.trajectory for item in items])
            jax.block_until_ready(metrics)
        with self.trace.span("publish"):
            self._publish(state, self._learned + 1)
        return state, metrics, items

    def told(self) -> list[str]:
        """What has happened since the last call and must be told."""
        return [self._notices.get() for _ in range(self._notices.qsize())]

    def depth(self) -> int:
        """Trajectory batches that lie in the queues."""
        return sum(one.qsize() for one in self.queues)

    def stop(self) -> None:
        """End all threads; one that hangs is left behind after a while."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + LIMIT
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _publish(self, state: State, learned: int) -> None:
        """Parameters device to device; actors pick them up before their next step."""
        read = {name: state.params[name] for name in self.unit.reads}
        here = jax.tree.map(lambda x: x.addressable_data(0), read)
        version = np.asarray(state.updates)  # the next update takes the array over
        latest = {device: (jax.device_put(here, device), version) for device in self.plan.actors}
        with self._changed:
            self._latest, self._learned = latest, learned
            self._changed.notify_all()

    def _take(self) -> Item:
        """The next item of the threads in turn, which bounds the lag and lets synchronous runs be repeated."""
        turn, deadline = self.queues[self._taken % len(self.queues)], time.monotonic() + self.plan.timeout
        while self._failure is None and time.monotonic() < deadline:
            try:
                item = turn.get(timeout=0.2)
            except queue.Empty:
                continue
            self._taken += 1
            return item
        which = self._taken % len(self.queues)
        raise Failed(self._failure or f"no experience came from actor {which} for {self.plan.timeout:g} s")

    def _may_begin(self, number: int) -> bool:
        """Wait until the trajectory of this number, in the order of taking, is not too far ahead; False at the end."""
        iteration = number // self.unit.learning.rounds
        with self._changed:
            while not self._stopping and iteration > self._learned + self.plan.lag:
                self._changed.wait(1.0)
            return not self._stopping

    def _guarded(self, which: int, life: int) -> None:
        """The whole life of a thread. Whatever ends it before its time is the run's failure."""
        try:
            while not self._stopping:
                try:
                    self._live(which, life)
                except Broken as error:
                    with self._changed:
                        if self.restarted == self.plan.restarts:
                            raise
                        self.restarted += 1
                    life += 1
                    self.life = max(self.life, life)
                    self._notices.put(f"environments of actor {which} failed and begin life {life}: {error}")
        except BaseException:
            self._failure = f"actor {which} died:\n{traceback.format_exc()}"

    def _live(self, which: int, life: int) -> None:
        """One life of a thread's environments."""
        device, envs = self.placed[which], self.plan.envs
        first = (jax.process_index() * len(self.placed) + which) * envs
        index = np.arange(first, first + envs, dtype=np.int32)
        compiled = self._acting[device]
        key = acting.streams(random.key(self.seed), life).actors
        with jax.default_device(device), _Guard(partial(self.make, index, life), self.plan.finite) as environments:
            timestep = environments.reset()
            slot = compiled.begin(self._latest[device][0], key, index, np.int32(life))
            while True:
                with self.trace.span("wait for the learner"):
                    if not self._may_begin(self._made[which] * len(self.placed) + which):
                        return
                slot, timestep = self._unroll(device, compiled.act, slot, timestep, environments)
                with self.trace.span("hand over"):
                    slot, trajectory, finished, bad = compiled.close(slot, timestep)
                    self.queues[which].put(Item(self._ship(trajectory), finished, bad))
                self._made[which] += 1

    def _unroll(
        self, device: Any, act: Callable[..., Any], slot: Slot, timestep: TimeStep, environments: "_Guard"
    ) -> tuple[Slot, TimeStep]:
        for _ in range(self.unit.learning.length):
            with self.trace.span("act"):
                slot, action = act(*self._latest[device], slot, timestep)
                action = np.asarray(action)
            with self.trace.span("step environments"):
                timestep = environments.step(action)
        return slot, timestep


class Acting(NamedTuple):
    """What runs on an actor device, compiled for it, and the shapes of what it makes."""

    begin: Callable[..., Slot]
    act: Callable[..., tuple[Slot, Array]]
    close: Callable[..., tuple[Slot, Trajectory, episodes.Finished, Array]]
    trajectory: Trajectory


def acting_on(unit: Sebulba, spec: Spec, params: PyTree, envs: int, everyone: int, device: Any) -> Acting:
    """Compile acting for a device.

    Args:
        unit: Sebulba.
        spec: the environment's.
        params: the groups that acting reads, or their shapes.
        envs: environments of a thread.
        everyone: environments over all threads and hosts.
        device: where.
    """
    here = jax.sharding.SingleDeviceSharding(device)

    def placed(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)

    index, number = jax.ShapeDtypeStruct((envs,), np.int32), jax.ShapeDtypeStruct((), np.int32)
    params, timestep = placed(params), jax.tree.map(_shape, host.empty(spec, envs))
    key = jax.eval_shape(random.key, 0)
    begin = jax.jit(partial(unit.begin, count=everyone)).lower(params, placed(key), index=index, life=number)
    slot = placed(begin.out_info)
    act = jax.jit(unit.act, donate_argnums=2).lower(params, number, slot, timestep)
    close = jax.jit(unit.close, donate_argnums=0).lower(slot, timestep)
    _, trajectory, *_ = close.out_info
    start = begin.compile()
    return Acting(
        lambda params, key, index, life: start(params, key, index=index, life=life),
        act.compile(),
        close.compile(),
        jax.tree.map(_shape, trajectory),
    )


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


class _Guard:
    """A batch of environments whose faults, whatever they are, come as Broken; closed at the end."""

    def __init__(self, make: Callable[[], Batch], finite: bool) -> None:
        self.batch: Batch = _guarded(make)
        self.finite = finite

    def reset(self) -> TimeStep:
        return self._checked(_guarded(self.batch.reset))

    def step(self, action: np.ndarray) -> TimeStep:
        return self._checked(_guarded(self.batch.step, action))

    def _checked(self, timestep: TimeStep) -> TimeStep:
        if self.finite:
            for name, leaf in (*_named(timestep.observation), ("reward", timestep.reward)):
                if not np.isfinite(leaf).all():
                    which = int(np.argmin(np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)))
                    raise Broken(f"{name} of environment {which} of this batch is not finite")
        return timestep

    def __enter__(self) -> "_Guard":
        return self

    def __exit__(self, *exception: object) -> None:
        self.batch.close()


def _named(observation: PyTree) -> list[tuple[str, Any]]:
    """The floating-point arrays of an observation with their names."""
    leaves = jax.tree_util.tree_flatten_with_path({"observation": observation})[0]
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in leaves
        if np.issubdtype(leaf.dtype, np.floating)
    ]


def _guarded(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        raise Broken(f"{type(error).__name__}: {error}") from error


def _shipper(mesh: Mesh) -> Callable[[Trajectory], Trajectory]:
    """Trajectory [E, ...] on an actor device -> the same over all learner devices, one shard straight to each."""
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
            shape = (shards[0].shape[0] * mesh.devices.size, *shards[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, list(shards))

        return jax.tree.map(whole, *parts)

    return ship


def updater(unit: Sebulba, mesh: Mesh) -> Any:
    """The learner's (params, rest of the state, batches) -> (State, metrics), over the mesh; the rest is used up."""
    body = jax.shard_map(unit.update, mesh=mesh, in_specs=(P(), P(devices.LEARNERS)), out_specs=P(), check_vma=False)

    # Actors may still hold the parameters, so these are not donated.
    @partial(jax.jit, donate_argnums=1)
    def update(params: Params, rest: tuple[PyTree, ...], batches: list[Trajectory]) -> tuple[State, dict[str, Array]]:
        return body(State(params, *rest), batches)

    return update
