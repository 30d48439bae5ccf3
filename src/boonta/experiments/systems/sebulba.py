"""Sebulba as a system: configuration to threads on their devices, evaluation on the host beside them."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from boonta.architectures import learner, sebulba, sebulba_split, sebulba_threads
from boonta.architectures.sebulba_threads import Plan, Threads
from boonta.core.environment import check
from boonta.core.faults import Supervisor
from boonta.core.host import Host, Workers
from boonta.core.totals import Totals
from boonta.core.trace import Trace
from boonta.experiments import agreement
from boonta.experiments import config as configuration
from boonta.experiments.config import Config
from boonta.experiments.devices import describe
from boonta.experiments.systems import placement
from boonta.experiments.systems.hosted import Hosted, Ledger, timeline
from boonta.experiments.systems.protocol import Failed, Idle, fitting
from boonta.experiments.tables import Sebulba as Options
from boonta.experiments.tables import patience


class Sebulba(Hosted):
    """See `System`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Options = config.architecture_settings
        asked = {key: getattr(self.options, key) for key in ("actors", "learners", "threads")}
        if self.options.measure and any(value not in ("auto", 0) for value in asked.values()):
            raise ValueError(f"architecture.measure (--devices auto) chooses actors, learners and threads, got {asked}")
        self._plan(*self._asked())
        self.iterations = configuration.iterations(config, self.steps, self.updates)
        self.agent = self.make_agent(total_updates=self.iterations * self.updates)
        self.unit = self._unit(self.plan.envs, len(self.plan.learners), len(self.plan.actors) * self.plan.threads)
        self.half = self.unit.learner
        self.trace = Trace(keep=bool(self.options.trace))
        self.threads: Threads | None = None
        self.reason: dict[str, str] = {}  # of a measured split

    def _plan(self, actors: list[Any], learners: list[Any], threads: int) -> None:
        """Who does what."""
        options, envs = self.options, self._envs(len(actors) * threads)
        limits = (options.lag, options.restarts, patience(options), self.drop, options.refresh == "unroll")
        self.plan = Plan(actors, learners, threads, envs, *limits)
        self.unit = self._unit(envs, len(learners), len(actors) * threads)
        self.half, self.player, self.synchronous = self.unit.learner, actors[0], options.lag == 0
        self.steps: float = envs * jax.process_count() * self.unit.learning.rounds * self.unit.actor.unroll
        self.updates = self.unit.learning.updates
        self.environments = envs * len(actors) * threads * jax.process_count()
        asked = Workers(options.workers, options.worker_count, options.worker_timeout)
        self._notes = self._remarks()
        self.workers, self.why = self.host.choose(envs, asked) if self.host.choose else (asked, "")

    def _remarks(self) -> list[str]:
        """What the plan leaves unused."""
        plan, options, remarks = self.plan, self.options, []
        given = [key for key in (options.actors, options.learners) if key != "auto"]
        idle = {*placement.usable(options)} - {*plan.actors, *plan.learners}
        alone = jax.default_backend() == "cpu" and not given  # one device plays both parts, on purpose
        if idle and len(given) < 2 and not alone and not options.measure:
            remarks.append(
                f"{len(idle)} devices stay idle: those that learn must divide the environments of a thread "
                f"({plan.envs}) and the batch ({max(self.batches)})"
            )
        threads, most = len(plan.actors) * plan.threads, (plan.lag + 1) * self.unit.learning.rounds
        if threads > most:
            remarks.append(
                f"{threads} threads act, but only {most} trajectories may be begun before the next update, so the "
                "others wait; lower architecture.envs or architecture.threads, or raise architecture.lag"
            )
        return remarks

    def _unit(self, envs: int, learners: int, threads: int) -> sebulba.Sebulba:
        hosts = jax.process_count()
        return sebulba.make(self.agent, self.spec, envs * hosts, learners, envs * hosts * threads)

    def _envs(self, threads: int) -> int:
        """Environments of each of so many threads of a host."""
        return self.options.envs or max(fitting(self.agent) // (threads * jax.process_count()), 1)

    def _divides(self, envs: int, learners: int) -> bool:
        """Whether so many learner devices of a host can share what threads with so many environments make."""
        return not any(n % learners for n in [envs, *(batch // jax.process_count() for batch in self.batches)])

    def _asked(self) -> tuple[list[Any], list[Any], int]:
        # While one thread steps environments, another acts; on a CPU both would want the same cores.
        threads = self.options.threads or (1 if jax.default_backend() == "cpu" else 2)
        divides = lambda actors, learners: self._divides(self._envs(actors * threads), learners)  # noqa: E731
        return *placement.asked(self.options, divides), threads

    def _measure(self) -> None:
        """Replace the plan by the one that measurements recommend."""
        there, shared = placement.usable(self.options), jax.default_backend() == "cpu"

        def envs_of(threads: int) -> int | None:
            envs = self._envs(threads)
            total = envs * threads * jax.process_count()
            if not all(total % batch == 0 or batch % total == 0 for batch in self.batches):
                return None
            rounds = math.lcm(envs * jax.process_count(), *self.batches) // (envs * jax.process_count())
            return envs if threads <= (self.options.lag + 1) * rounds else None  # others would wait

        splits = sebulba_split.candidates(len(there), envs_of, self._divides, shared)
        make = lambda index: self.host.make(index, self.seed, 0, self.workers)  # noqa: E731
        unit_of = partial(sebulba.make, self.agent, self.spec)
        times = sebulba_split.measure(splits, there, unit_of, self.spec, make, int(self.steps), shared)
        split, why = sebulba_split.choose(splits, times)
        split = splits[int(agreement.shared(np.int32(splits.index(split))))]
        learners = there[: split.learners] if split.both else there[-split.learners :]
        self._plan(there[: split.actors], placement.everywhere(learners), split.threads)
        self.reason = {"split": why}

    def start(self) -> learner.State:
        """The state; actors are set going by the first `advance`."""
        if self.environment:
            check(self.environment)
        if self.options.trace:
            timeline(self.trace, self.options.trace)  # now, for it may be refused
        if self.options.measure:
            self._measure()
        make = partial(_make, self.host, self.seed, self.workers)
        self.threads = Threads(self.unit, make, self.plan, self.seed, self.trace, self.watch)
        self._running = False
        return self.threads.init(self._overrides())

    def advance(
        self, state: learner.State, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[learner.State, Totals, float]:
        assert self.threads is not None
        if not self._running:
            clock = time.perf_counter()
            self._names = self.unit.actor.observed + self.threads.compile(state, self.spec)
            self.compile_seconds += time.perf_counter() - clock
            self.threads.start(state, self._life)
            self._running = True
        threads, made = self.threads, Ledger()

        def once() -> None:
            nonlocal state
            depth = threads.depth()
            state, metrics, told = threads.iterate(state)
            made.add(metrics | {"queue_depth": depth}, told)

        if jax.process_count() == 1:  # several go on until all have asked one another
            threads.asked = asked
        clock = time.perf_counter()
        try:
            self._loop(once, iterations, asked)
        except sebulba_threads.Failed as error:
            raise Failed(str(error)) from error
        except sebulba_threads.Asked:
            if not made.iterations:
                raise Idle from None
        jax.block_until_ready(state.updates)
        elapsed = time.perf_counter() - clock
        self._slow_down(made.iterations, elapsed)
        restarts = float(agreement.total(threads.supervisor.incidents))
        return state, made.close(so_far, self._idle(elapsed), {"restarts": restarts}), elapsed

    def _idle(self, elapsed: float) -> dict[str, float]:
        """What share of their time threads spent on what since the last call, actors in the mean, and devices idle."""
        shares = self._shares(self.trace, {"actor": "actor", "learner": "learner"})
        # Threads that wait for one another on a device count as busy, so this is the least that it was idle.
        busy = {
            "actor": self._spent.get("time/actor/act", 0.0) / len(self.plan.actors),
            "learner": self._spent.get("time/learner/learn", 0.0),
        }
        return shares | {f"idle/{who}_devices": max(1 - seconds / elapsed, 0.0) for who, seconds in busy.items()}

    def tensors(self) -> list[str]:
        return self._names

    def _supervisor(self) -> Supervisor:
        return self.threads.supervisor if self.threads else Supervisor(self.options.restarts)

    def notices(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes + (self.threads.supervisor.told() if self.threads else [])

    def check(self) -> None:
        try:
            if self.threads:
                self.threads.check()
        except sebulba_threads.Failed as error:
            raise Failed(str(error)) from error

    def describe(self) -> dict[str, Any]:
        chosen = list(dict.fromkeys([*self.plan.actors, *self.plan.learners]))
        return (
            describe(chosen)
            | self.reason
            | {
                "actors": [int(device.id) for device in self.plan.actors],
                "learners": [int(device.id) for device in self.plan.learners],
                "threads": self.plan.threads,
                "environments_of_a_thread": self.plan.envs,
                "workers": self.workers._asdict() | {"why": self.why},
            }
        )

    def close(self) -> None:
        self._closing.set()
        if self.threads:
            self.threads.stop()
        self._end_evaluation()
        if self.options.trace:
            timeline(self.trace, self.options.trace, forgive=True)


def _make(host: Host, seed: int, workers: Workers, indices: np.ndarray, life: int) -> Any:
    return host.make(indices, seed, life, workers)
