"""Sebulba as a system: configuration to threads on their devices, evaluation on the host beside them."""

import itertools
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta import envs
from boonta.architectures import learner, sebulba, sebulba_split, sebulba_threads
from boonta.architectures.sebulba_threads import Plan, Threads, Told
from boonta.core import episodes as counting
from boonta.core import random
from boonta.core.environment import Environment, check
from boonta.core.faults import Broken, Budget, Guard
from boonta.core.host import Host, Workers
from boonta.core.settings import Refused
from boonta.core.trace import Trace
from boonta.core.types import Params, PyTree
from boonta.envs.served import serve
from boonta.experiments import agreement, evaluation, files, registry
from boonta.experiments import config as configuration
from boonta.experiments.config import Config
from boonta.experiments.devices import describe
from boonta.experiments.evaluation import Film, Scores
from boonta.experiments.systems import placement
from boonta.experiments.systems.protocol import Failed, beside, done
from boonta.experiments.tables import Sebulba as Options

CLOSING = 10.0  # seconds that closing waits for an evaluation
BETWEEN = 1.0  # seconds between the moments in which hosts ask one another whether to stop
RESUMED = 1 << 16  # lives of environments between one start of a run and the next


class Sebulba:
    """See `System`."""

    def __init__(self, config: Config) -> None:
        made = envs.make(config.env, **config.env_settings)
        self.environment = made if isinstance(made, Environment) else None
        self.host = serve(made) if isinstance(made, Environment) else made
        self.spec = self.host.spec
        self.options: Options = config.architecture_settings
        self.members = configuration.members(config)
        if len(self.members) > 1:
            raise ValueError(f"sebulba trains one member at a time, got {len(self.members)} (run.seeds, run.sweep)")
        asked = {key: getattr(self.options, key) for key in ("actors", "learners", "threads")}
        if self.options.measure and any(value not in ("auto", 0) for value in asked.values()):
            raise ValueError(f"architecture.measure (--devices auto) chooses actors, learners and threads, got {asked}")
        self.seed = self.members[0].seed
        self.drop = config.run.on_nan == "drop"
        entry = registry.agent(config.agent)
        self.agent = entry.factory(self.spec, config.agent_settings)
        self.batches = [learner.experience.batch for learner in self.agent.learners.values()]
        self._plan(*self._asked())
        self.iterations = configuration.iterations(config, self.steps, self.updates)
        self.agent = entry.factory(self.spec, config.agent_settings, total_updates=self.iterations * self.updates)
        self.unit = self._unit(self.plan.envs, len(self.plan.learners))
        self.trace = Trace(keep=bool(self.options.trace))
        self.compile_seconds = 0.0
        self.threads: Threads | None = None
        self.greedy = evaluation.Greedy(self.agent)
        self.reason: dict[str, str] = {}  # of a measured split
        self._began: dict[str, float] = {}
        self._life = 0
        self._pace = 1  # iterations between the moments in which hosts ask one another
        self._evaluation: Future[Scores] | None = None
        self._closing = False

    def _plan(self, actors: list[Any], learners: list[Any], threads: int) -> None:
        """Who does what."""
        options, envs = self.options, self._envs(len(actors) * threads)
        limits = (options.lag, options.restarts, options.timeout, self.drop)
        self.plan = Plan(actors, learners, threads, envs, *limits)
        self.unit = self._unit(envs, len(learners))
        self.steps = envs * jax.process_count() * self.unit.learning.rounds * self.unit.learning.unroll
        self.updates = self.unit.learning.updates
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

    def _unit(self, envs: int, learners: int) -> sebulba.Sebulba:
        return sebulba.make(self.agent, self.spec, envs * jax.process_count(), learners)

    def _envs(self, threads: int) -> int:
        """Environments of each of so many threads of a host."""
        return self.options.envs or max(max(self.batches) // (threads * jax.process_count()), 1)

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
        times = sebulba_split.measure(splits, there, unit_of, self.spec, make, self.steps, shared)
        split, why = sebulba_split.choose(splits, times)
        split = splits[int(agreement.shared(np.int32(splits.index(split))))]
        learners = there[: split.learners] if split.both else there[-split.learners :]
        self._plan(there[: split.actors], placement.everywhere(learners), split.threads)
        self.reason = {"split": why}

    def shapes(self) -> PyTree:
        here = jax.sharding.SingleDeviceSharding(self.plan.actors[0])
        shapes, _ = self.split(jax.eval_shape(lambda: self.unit.learner.init(random.key(self.seed), self._overrides())))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)

    def _overrides(self) -> dict[str, Any]:
        return {key: jnp.float32(value) for key, value in self.members[0].overrides.items()}

    def split(self, state: learner.State) -> tuple[learner.State, PyTree]:
        return state._replace(replays={}), state.replays

    def joined(self, rest: learner.State, replays: PyTree) -> learner.State:
        return rest._replace(replays=replays)

    def start(self, facts: dict[str, Any] | None = None) -> learner.State:
        """The state; actors are set going by the first `advance`, with environments of a life that was not yet."""
        if self.environment:
            check(self.environment)
        if self.options.trace:
            self._write_trace()  # now, for it may be refused
        if self.options.measure:
            self._measure()
        self._life = (int(facts["life"]) // RESUMED + 1) * RESUMED if facts else 0
        make = partial(_make, self.host, self.seed, self.workers)
        self.threads = Threads(self.unit, make, self.plan, self.seed, self.trace)
        self._running = False
        return self.threads.init(self._overrides())

    def advance(
        self, state: learner.State, iterations: int, asked: Callable[[], bool]
    ) -> tuple[learner.State, dict[str, np.ndarray], float]:
        assert self.threads is not None
        if not self._running:
            clock = time.perf_counter()
            self._names = self.unit.observed + self.threads.compile(state, self.spec)
            self.compile_seconds += time.perf_counter() - clock
            self.threads.start(state, self._life)
            self._running = True
        made: list[tuple[dict[str, Any], list[Told], int]] = []
        clock = time.perf_counter()
        try:
            while len(made) < iterations:
                depth = self.threads.depth()
                state, metrics, told = self.threads.iterate(state)
                made.append((metrics, told, depth))
                if len(made) % self._pace == 0 and not agreement.together(not asked()):
                    break
        except sebulba_threads.Failed as error:
            raise Failed(str(error)) from error
        elapsed = time.perf_counter() - clock
        if jax.process_count() > 1:
            self._pace = int(agreement.shared(np.int32(max(BETWEEN * len(made) / elapsed, 1))))
        same = self._shares(elapsed) | {"restarts": float(agreement.total(self.threads.budget.spent))}
        return state, _rows(made) | {key: np.full((1, len(made)), x) for key, x in same.items()}, elapsed

    def _shares(self, elapsed: float) -> dict[str, float]:
        """What share of their time threads spent on what since the last call, actors in the mean, and devices idle."""
        sums: dict[str, float] = {}
        for thread, parts in self.trace.sums().items():
            who = thread.split()[0]
            if who in ("actor", "MainThread"):
                for name, seconds in parts.items():
                    place = f"time/{'actor' if who == 'actor' else 'learner'}/{name}"
                    sums[place] = sums.get(place, 0.0) + seconds
        new = {key: value - self._began.get(key, 0.0) for key, value in sums.items()}
        self._began = sums
        totals = {who: sum(v for k, v in new.items() if k.split("/")[1] == who) for who in ("actor", "learner")}
        shares = {key: value / max(totals[key.split("/")[1]], 1e-9) for key, value in new.items()}
        # Threads that wait for one another on a device count as busy, so this is the least that it was idle.
        busy = {
            "actor": new.get("time/actor/act", 0.0) / len(self.plan.actors),
            "learner": new.get("time/learner/learn", 0.0),
        }
        return shares | {f"idle/{who}_devices": max(1 - seconds / elapsed, 0.0) for who, seconds in busy.items()}

    def tensors(self) -> list[str]:
        return self._names

    def evaluate(self, state: learner.State, episodes: int) -> "Future[Scores]":
        if jax.process_index():  # the first host plays for all
            return done(Scores(np.zeros((1, episodes), np.float32), np.zeros((1, episodes), np.int32)))  # type: ignore[arg-type]
        params = jax.device_put(jax.tree.map(lambda x: x.addressable_data(0), state.params), self.plan.actors[0])

        def play() -> Scores:
            scores = self.play(params, episodes)
            return Scores(scores.returns[None], scores.lengths[None])

        # A run that can be repeated logs its evaluations in the same places.
        self._evaluation = beside(play, "evaluator") if self.plan.lag else done(play())
        return self._evaluation

    def play(self, params: Params, episodes: int) -> Scores:
        examiner, where = self.host.examiner or self.host, self.plan.actors[0]
        budget = self.threads.budget if self.threads else Budget(self.options.restarts)
        for life in itertools.count():
            make = partial(examiner.make, np.arange(episodes), evaluation.SEED, life, self.workers)
            guarded = partial(Guard, make, self.drop, budget.tell)
            try:
                with jax.default_device(where):
                    return evaluation.on_host(self.greedy, params, guarded, episodes, lambda: self._closing)
            except Broken as error:
                budget.spend("an evaluation", error)
        raise AssertionError("not reached")

    def film(self, params: Params, seed: int, steps: int) -> Film:
        examiner = self.host.examiner or self.host
        drawn = examiner.drawn() if examiner.drawn else examiner
        return evaluation.film_on_host(self.greedy, drawn, params, seed, steps)

    def params(self, state: learner.State, member: int) -> Params:
        del member
        return state.params

    def facts(self) -> dict[str, Any]:
        return {"life": self._life}

    def notices(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes + (self.threads.budget.told() if self.threads else [])

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
        self._closing = True
        if self.threads:
            self.threads.stop()
        if self._evaluation:
            wait([self._evaluation], CLOSING)
        if self.options.trace:
            try:
                self._write_trace()
            except Refused as error:  # the run counts for more
                print(f"boonta: WARNING: {error}", file=sys.stderr)

    def _write_trace(self) -> None:
        """The timeline of this host so far; hosts after the first have files of their own.

        Raises:
            Refused: it cannot be written.
        """
        file = Path(self.options.trace)
        if host := jax.process_index():
            file = file.with_name(f"{file.stem}-host{host}{file.suffix}")
        try:
            files.write_text(file, self.trace.timeline())
        except OSError as error:
            raise Refused(f"architecture.trace must be a file that can be written, got {file}: {error}") from error


def _make(host: Host, seed: int, workers: Workers, indices: np.ndarray, life: int) -> Any:
    return host.make(indices, seed, life, workers)


def _rows(made: list[tuple[dict[str, Any], list[Told], int]]) -> dict[str, np.ndarray]:
    """The metrics [1, iterations], with the episodes that finished in what each iteration learned from."""
    metrics = [metrics for metrics, _, _ in made]
    finished = [[one.finished for one in told] for _, told, _ in made]
    codes = [[one.bad for one in told] for _, told, _ in made]
    metrics, finished, codes = jax.device_get((metrics, finished, codes))
    rows = {key: np.asarray([[row[key] for row in metrics]]) for key in metrics[0]}
    stacked = jax.tree.map(
        lambda *parts: np.stack(parts), *[jax.tree.map(lambda *p: np.stack(p), *f) for f in finished]
    )
    observed = np.asarray([[next((code for code in row if code), 0) for row in codes]])
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        # [hosts, iterations, rounds] each; the episodes of all hosts are one more set to merge.
        stacked, observed = multihost_utils.process_allgather((stacked, observed))
        stacked = jax.tree.map(lambda x: np.concatenate(list(x), axis=-1), stacked)
        observed = np.max(observed, axis=0)
    merged = jax.device_get(jax.vmap(counting.merge)(stacked))
    rows["health"] = np.where(observed > 0, observed, rows["health"])
    rows["queue_depth"] = np.asarray([[depth for _, _, depth in made]])
    return rows | {key: value[None] for key, value in merged._asdict().items()}
