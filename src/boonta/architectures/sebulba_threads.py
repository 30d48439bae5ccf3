"""What moves in Sebulba: actor threads, their queues, and the learner that takes from them and publishes.

Whoever iterates sets the learner devices going, and may do so again before they are done, as far as the lag lets actors
go on; a thread sees each update through and publishes it at once.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.learner import State, metric_names, shipper, starter, updater
from boonta.architectures.sebulba import Sebulba, Slot
from boonta.architectures.sebulba_compiled import Acting, acting_on, shape
from boonta.core import acting, devices, episodes, random
from boonta.core.faults import Broken, Guard, Supervisor
from boonta.core.host import Batch
from boonta.core.spec import Spec
from boonta.core.trace import Trace
from boonta.core.types import Array, Params, TimeStep, Trajectory
from boonta.core.watch import Watch

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
        restarts: how often batches of environments may fail within an hour, together, before the run does.
        timeout: seconds without a step of a thread's environments after which the run fails.
        finite: whether an observation or reward that is not finite counts as a failure of its environments.
        hold: whether actors take new parameters only before a trajectory, as those do that have a network far away
            from the learner, and not before every step.
    """

    actors: Sequence[Any]
    learners: Sequence[Any]
    threads: int
    envs: int
    lag: int = 1
    restarts: int = 0
    timeout: float = 120.0
    finite: bool = False
    hold: bool = False


class Failed(RuntimeError):
    """A thread died, or nothing came; the message says which, with the traceback."""


class Asked(Exception):
    """The run was asked to end while it waited."""


class Told(NamedTuple):
    """About a trajectory batch: the episodes that finished in it, and its health."""

    finished: episodes.Finished
    bad: Array


class Item(NamedTuple):
    """What an actor thread hands over: trajectories on the learner devices, and what is to be told about them."""

    trajectory: Trajectory
    told: Told


class Threads:
    """Actor threads, the learner's side of their queues, and the thread that publishes.

    Args:
        unit: Sebulba.
        make: (indices [E], life) -> a batch of environments.
        plan: Plan.
        seed: of the environments' random streams.
        trace: where spans of time go.
        watch: is told of updates.

    Attributes:
        asked: whether the run is to end; asked again and again while it waits.
    """

    def __init__(
        self, unit: Sebulba, make: Callable[[np.ndarray, int], Batch], plan: Plan, seed: int, trace: Trace,
        watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self.unit, self.make, self.plan, self.seed, self.trace = unit, make, plan, seed, trace
        self.watch = watch or Watch()
        self.asked: Callable[[], bool] = lambda: False
        self.placed = [device for device in plan.actors for _ in range(plan.threads)]
        self.queues: list[queue.SimpleQueue[Item]] = [queue.SimpleQueue() for _ in self.placed]
        self.supervisor = Supervisor(plan.restarts)
        self._mesh = devices.mesh(list(plan.learners))
        self._ship = shipper(self._mesh)
        self._update: Any = updater(unit.learner, self._mesh)
        self._everyone = jax.process_count() * len(self.placed) * plan.envs
        self._acting: dict[Any, Acting] = {}
        self._threads: list[threading.Thread] = []
        self._latest: dict[Any, tuple[Params, np.ndarray]] = {}
        self._updating: queue.SimpleQueue[tuple[Params, dict[str, Array]] | None] = queue.SimpleQueue()  # None: the end
        self._begun = 0  # iterations, counted from `start`
        self._learned = 0  # of them, those that the parameters in `_latest` stand for
        self._taken = 0
        self._items: list[Item] = []  # for the next iteration
        self._made = [0] * len(self.placed)
        self._moved = [0.0] * len(self.placed)  # when environments last answered
        self._failure: str | None = None
        self._fault: BaseException | None = None  # of an update
        self._stopping = False
        self._changed = threading.Condition()

    def init(self, settings: dict[str, Array] | None = None) -> State:
        """The state at the beginning, on all learner devices; `settings` as in `Halves.init`."""
        return starter(self.unit.learner, self._mesh)(random.key(self.seed), settings or {})

    def compile(self, state: State, spec: Spec) -> list[str]:
        """Compile all there is to compile; the names of the metrics that `health` may point to."""
        here = jax.tree.map(shape, {name: state.params[name] for name in self.unit.actor.reads})
        for device in self.plan.actors:
            self._acting[device] = acting_on(self.unit.actor, spec, here, self.plan.envs, self._everyone, device)
        trajectory = self._acting[self.plan.actors[0]].trajectory
        own = NamedSharding(self._mesh, P(devices.LEARNERS))

        def spread(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            whole = (shape.shape[0] * jax.process_count(), *shape.shape[1:])
            return jax.ShapeDtypeStruct(whole, shape.dtype, sharding=own)

        batches = [jax.tree.map(spread, trajectory)] * self.unit.learning.rounds
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        lowered = self._update.lower(placed.params, tuple(placed[1:]), batches)
        self._update = lowered.compile()
        _, metrics = lowered.out_info
        return metric_names(metrics)

    def start(self, state: State, life: int = 0) -> None:
        """Set the actors going with these parameters, their environments in this life."""
        self._publish(state.params, int(state.updates), 0)
        self._threads = [threading.Thread(target=self._see_through, name="learner", daemon=True)]
        self._threads += [
            threading.Thread(target=self._act, args=(which, life), name=f"actor {which}", daemon=True)
            for which in range(len(self.placed))
        ]
        for thread in self._threads:
            thread.start()

    def iterate(self, state: State) -> tuple[State, dict[str, Array], list[Told]]:
        """Take what one iteration needs and set the devices learning from it. The state given is used up.

        Raises:
            Failed: an actor thread died, or nothing came in time; an update that failed raises what it raised.
            Asked: the run is to end. What was taken stays for the next call.
        """
        while len(self._items) < self.unit.learning.rounds:
            self._items.append(self._take())
        items, self._items = self._items, []
        self.watch.begin()
        state, metrics = self._update(state.params, tuple(state[1:]), [item.trajectory for item in items])
        self._begun += 1
        self._updating.put((state.params, metrics))
        return state, metrics, [item.told for item in items]

    def check(self) -> None:
        """Look after the threads, for whoever does not wait for them.

        Raises:
            Failed: an actor thread died; an update that failed raises what it raised.
        """
        if self._fault:
            raise self._fault
        if self._failure:
            raise Failed(self._failure)

    def depth(self) -> int:
        """Trajectory batches that lie in the queues."""
        return sum(one.qsize() for one in self.queues)

    def stop(self) -> None:
        """End all threads; one that hangs is left behind after a while."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._updating.put(None)
        deadline = time.monotonic() + LIMIT
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _see_through(self) -> None:
        """What the learner's thread does: wait for every update, and publish."""
        version = int(next(iter(self._latest.values()))[1])
        try:
            while not self._stopping:
                try:
                    with self.trace.span("wait for experience"):
                        updating = self._updating.get(timeout=0.2)
                except queue.Empty:
                    continue
                if updating is None:
                    return
                params, metrics = updating
                with self.trace.span("learn"):
                    version += int(metrics["made"])  # waits for it
                    self.watch.end()
                with self.trace.span("publish"):
                    self._publish(params, version, self._learned + 1)
        except BaseException as error:
            self._fault = error

    def _publish(self, params: Params, version: int, learned: int) -> None:
        """Parameters device to device; actors pick them up before their next step."""
        read = {name: params[name] for name in self.unit.actor.reads}
        here = jax.tree.map(lambda x: x.addressable_data(0), read)
        at = jax.tree.leaves(here)[0].device  # who acts where it lies has it without a call for each array
        latest = {
            device: (here if device == at else jax.device_put(here, device), np.asarray(version, np.int32))
            for device in self.plan.actors
        }
        with self._changed:
            self._latest, self._learned = latest, learned
            self._changed.notify_all()

    def _take(self) -> Item:
        """The next item of the threads in turn, which bounds the lag and lets synchronous runs be repeated."""
        which = self._taken % len(self.queues)
        failed, since = self.supervisor.incidents, time.monotonic()
        while time.monotonic() < max(since, self._moved[which]) + self.plan.timeout:
            self.check()
            if self.asked():
                raise Asked
            if self.supervisor.incidents > failed or self._learned < self._begun:
                # Environments that are made anew have all the time again, as have actors that wait for an update.
                failed, since = self.supervisor.incidents, time.monotonic()
            try:
                item = self.queues[which].get(timeout=0.2)
            except queue.Empty:
                continue
            self._taken += 1
            return item
        raise Failed(f"no experience came from actor {which} for {self.plan.timeout:g} s (architecture.timeout)")

    def _may_begin(self, number: int) -> bool:
        """Wait until the trajectory of this number, in the order of taking, is not too far ahead; False at the end."""
        iteration = number // self.unit.learning.rounds
        with self._changed:
            while not self._stopping and iteration > self._learned + self.plan.lag:
                self._changed.wait(1.0)
            return not self._stopping

    def _act(self, which: int, life: int) -> None:
        """All that a thread does. Whatever ends it before its time is the run's failure."""
        try:
            while not self._stopping:
                try:
                    self._live(which, life)
                except Broken as error:
                    who = f"environments of actor {which}"
                    restart = self.supervisor.incident(who, error, "failed and are made anew")
                    life += 1
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopping, restart.delay)
        except BaseException as error:
            (*_, last) = str(error).strip().splitlines() or [type(error).__name__]
            self._failure = f"actor {which} died: {last}\n{traceback.format_exc()}"

    def _live(self, which: int, life: int) -> None:
        """One life of a thread's environments."""
        device, envs = self.placed[which], self.plan.envs
        first = (jax.process_index() * len(self.placed) + which) * envs
        index = np.arange(first, first + envs, dtype=np.int32)
        compiled = self._acting[device]
        key = acting.streams(random.key(self.seed), life).actors
        guard = Guard(partial(self.make, index, life), self.plan.finite, self.supervisor.tell)
        with jax.default_device(device), guard as environments:
            timestep = environments.reset()
            self._moved[which] = time.monotonic()
            slot = compiled.begin(self._latest[device][0], key, index, np.int32(life))
            while True:
                with self.trace.span("wait for the learner"):
                    if not self._may_begin(self._made[which] * len(self.placed) + which):
                        return
                slot, timestep = self._unroll(which, compiled.act, slot, timestep, environments)
                with self.trace.span("hand over"):
                    slot, trajectory, finished, bad = compiled.close(slot, timestep)
                    self.queues[which].put(Item(self._ship(trajectory), Told(finished, bad)))
                self._made[which] += 1

    def _unroll(
        self, which: int, act: Callable[..., Any], slot: Slot, timestep: TimeStep, environments: Guard
    ) -> tuple[Slot, TimeStep]:
        device = self.placed[which]
        latest = self._latest[device]
        for _ in range(self.unit.actor.unroll):
            if not self.plan.hold:
                latest = self._latest[device]
            with self.trace.span("act"):
                slot, action = act(*latest, slot, timestep)
                action = np.asarray(action)
            with self.trace.span("step environments"):
                timestep = environments.step(action)
            self._moved[which] = time.monotonic()
        return slot, timestep
