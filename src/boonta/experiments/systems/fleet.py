"""The fleet as a system: configuration to members of a crew, which the driver of a run asks as one."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta.architectures import fleet, learner, sebulba
from boonta.architectures.fleet import Asked
from boonta.architectures.fleet_plan import ROLES, Plan
from boonta.architectures.fleet_roles import Parts
from boonta.architectures.fleet_staff import Failed as Failure
from boonta.architectures.learning import fused
from boonta.core import random
from boonta.core.agent import Agent
from boonta.core.crew import Crew, Gone, Resources
from boonta.core.environment import check
from boonta.core.faults import Supervisor
from boonta.core.host import Workers, cores
from boonta.core.totals import Totals
from boonta.core.watch import Watch
from boonta.experiments import config as configuration
from boonta.experiments import process
from boonta.experiments.config import Config
from boonta.experiments.devices import describe
from boonta.experiments.evaluation import Scores
from boonta.experiments.replays import Arrays
from boonta.experiments.systems.hosted import Hosted, Ledger
from boonta.experiments.systems.protocol import Failed, Idle, fitting
from boonta.experiments.tables import Fleet as Options
from boonta.experiments.tables import patience
from boonta.experiments.watchdog import watch_process
from boonta.replay.windows import pace, windows


class Fleet(Hosted):
    """See `System`."""

    def __init__(self, config: Config) -> None:
        if jax.distributed.is_initialized():
            raise ValueError("a fleet is one driver's; its other machines come from Ray: architecture.cluster")
        if config.architecture_settings.crew == "ray":
            from boonta.transport import ray  # noqa: F401 -- refused before anything is written where it is missing

            jax.config.update("jax_platforms", "cpu")  # accelerators are the members'
        super().__init__(config)
        self.options = config.architecture_settings
        self.workers = Workers(self.options.workers, self.options.worker_count, self.options.worker_timeout)
        self.player = jax.devices()[0]
        self.plan, self.steps, self.updates, self.before = self._planned()
        self.iterations = configuration.iterations(config, self.steps, self.updates, self.before)
        self.total = self.iterations * self.updates
        self.environments = self.plan.workers * self.plan.envs
        self.agent = self.make_agent(total_updates=self.total)
        self.half = _half(self.agent, self.plan, self.spec)
        self.fleet: fleet.Fleet | None = None  # once all members are there
        self._hired: fleet.Fleet | None = None
        self._crew: Crew | None = None
        self._replay: Arrays | None = None

    def start(self) -> learner.State:
        """The state; members are hired by the first `advance`."""
        if self.environment:
            check(self.environment)
        self._crew = self._carrier()
        return jax.jit(self.half.init)(random.key(self.seed), self._overrides())

    def advance(
        self, state: learner.State, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[learner.State, Totals, float]:
        crew, made = self._crew, Ledger()
        assert crew is not None
        try:
            if self.fleet is None:
                clock = time.perf_counter()
                make = partial(_parts, self.config, self.total, None if self.options.crew == "ray" else self.watch)
                bare = jax.device_get(random.without_keys(state))
                self._hired = fleet.Fleet(crew, make, self.plan, self.seed, bare, self._life)
                self._hired.asked = asked
                self._hired.begin(self._replay or {})
                self.fleet, self._replay = self._hired, None
                self.compile_seconds += time.perf_counter() - clock
            members = self.fleet
            members.asked = asked
            clock, before = time.perf_counter(), (members.learning, members.acting)
            with suppress(Asked):
                while (left := iterations - made.iterations) and (not (ending := asked()) or members.under_way()):
                    made.add(*members.iterate(0 if ending else left))
            if not made.iterations:
                raise Idle
            elapsed = time.perf_counter() - clock
            state = jax.tree.map(jnp.asarray, random.with_keys(members.state(), state))
        except Asked:  # before all members were there
            raise Idle from None
        except Failure as error:
            raise Failed(str(error)) from error
        busy = np.subtract((members.learning, members.acting), before) / elapsed / (1, self.plan.workers)
        shares = {"busy/server": busy[0], "busy/training": busy[1]}
        return state, made.close(so_far, shares, self._counts(members)), elapsed

    def at(self, iterations: int) -> int:
        return int(self.before + iterations * self.steps) if iterations else 0

    def replays(self, state: learner.State) -> AbstractContextManager[Arrays]:
        try:
            return nullcontext(self.fleet.arrays() if self.fleet else self._replay or {})
        except Failure as error:
            raise Failed(str(error)) from error

    def joined(
        self, rest: learner.State, fresh: learner.State, replays: Arrays | None, facts: dict[str, Any]
    ) -> learner.State:
        del fresh
        self._live_on(facts)
        self._replay = {name: np.asarray(x) for name, x in replays.items()} if replays else None
        return rest

    def evaluate(self, state: learner.State, episodes: int) -> "Future[Scores]":
        mine = partial(super().evaluate, state, episodes)
        if self.fleet is None:  # a run that was ended before its last evaluation needs nobody else
            return mine()
        told: Future[Scores] = Future()

        def theirs(done: "Future[Any]") -> None:
            try:
                if isinstance(done.exception(), Gone):  # the run need not wait until there is another
                    mine().add_done_callback(partial(_pass_on, told))
                else:
                    told.set_result(Scores(*(x[None] for x in done.result())))
            except Exception as error:  # which a future would keep to itself
                told.set_exception(error)

        self.fleet.examine(jax.device_get(state.params), episodes).add_done_callback(theirs)
        return told

    def tensors(self) -> list[str]:
        assert self.fleet is not None
        return sebulba.acts(self.agent, self.spec).observed + self.fleet.names

    def notices(self) -> list[str]:
        return self._hired.told() if self._hired else []

    def check(self) -> None:
        try:
            if self.fleet:
                self.fleet.staff.receive()
        except Failure as error:
            raise Failed(str(error)) from error

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        members = {"training": plan.workers, "reanalyse": plan.reanalysers, "replay": int(bool(plan.batch))}
        return describe([self.player]) | {
            "crew": self.options.crew,
            "cluster": self.options.cluster,
            "members": members | {"server": 1, "testing": 1},
            "environments_of_a_worker": plan.envs,
            "resources": {role: needs._asdict() for role, needs in plan.resources.items()},
        }

    def close(self) -> None:
        self._closing.set()
        if self._crew:
            self._crew.close()
        self._end_evaluation()  # of a run that had ended before it

    def _planned(self) -> tuple[Plan, float, int, int]:
        """The plan; steps and updates of an iteration, and steps before the first."""
        options: Options = self.options
        together = fitting(self.agent)  # on any number of cores, so that a run can go on elsewhere
        workers = options.training_workers or max(n for n in range(1, cores() + 1) if together % n == 0)
        envs = options.envs or max(together // workers, 1)
        gpus = {"replay": 0.0} | {r: getattr(options, f"{r}_gpus") for r in ROLES if r != "replay"}
        plan = Plan(
            workers, envs, ahead=options.ahead, publish=options.publish, compress=options.compress,
            devices=options.devices or (0 if options.server_gpus else 1), restarts=options.restarts,
            timeout=patience(options), finite=self.drop, simulators=self.workers,
            resources={role: Resources(getattr(options, f"{role}_cpus"), gpus[role]) for role in ROLES},
        )  # fmt: skip
        if not self.replaying:
            learning = fused(self.agent, workers * envs, max(plan.devices, 1), stack=self.spec.stack)
            steps = float(workers * envs * learning.rounds * learning.unroll)
            return plan._replace(rounds=learning.rounds), steps, learning.updates, 0
        if len(self.agent.learners) != 1:
            raise ValueError(f"replay on the host feeds one learner, got {', '.join(self.agent.learners)}")
        (one,) = self.agent.learners.values()
        wanted, sizes = one.experience, windows(one.experience)
        before, steps = pace(sizes, wanted.minimum, wanted.batch, wanted.samples_per_insert)
        plan = plan._replace(
            reanalysers=options.reanalyse_workers if wanted.reanalyse else 0, batch=wanted.batch,
            ratio=wanted.samples_per_insert, minimum=wanted.minimum, each=sizes.each, reanalyse=wanted.reanalyse,
            capacity=wanted.capacity + workers * envs * sizes.pieces * sizes.each,
        )  # fmt: skip
        return plan, steps, 1, before

    def _carrier(self) -> Crew:
        if self.options.crew == "threads":
            from boonta.transport.inline import Inline

            return Inline()
        from boonta.transport.ray import Cluster

        plan, needs = self.plan, self.plan.resources
        counts = {"server": 1, "testing": 1, "training": plan.workers, "reanalyse": plan.reanalysers}
        counts["replay"] = int(bool(plan.batch))
        return Cluster(self.options.cluster, sum(counts[role] * needs[role].cpus for role in ROLES))

    def _counts(self, members: fleet.Fleet) -> dict[str, float]:
        counts = {"restarts": float(members.staff.supervisor.incidents)}
        if self.plan.batch:
            inserted = members.inserted - self.plan.minimum
            counts["replay/windows"] = float(members.windows)
            counts["replay/samples_per_insert"] = members.sampled / inserted if inserted > 0 else float("nan")
        return counts | ({"replay/reanalysed": members.renewed} if self.plan.reanalyse else {})

    def _supervisor(self) -> Supervisor:
        return Supervisor(self.options.restarts)


def _half(agent: Agent, plan: Plan, spec: Any) -> learner.Halves | learner.Sampled:
    """What the parameter server compiles, for the shapes of its state."""
    if plan.batch:
        return learner.sampled(agent, 0, spec.stack)
    learning = fused(agent, plan.workers * plan.envs, max(plan.devices, 1), stack=spec.stack)
    return learner.halves(agent, learning, sebulba.acts(agent, spec).piece, 0)


def _pass_on(told: "Future[Scores]", played: "Future[Scores]") -> None:
    if error := played.exception():
        told.set_exception(error)
    else:
        told.set_result(played.result())


def _parts(config: Config, total: int, watch: Watch | None, role: str) -> Parts:
    """What a member is made of: in a process of its own, where there is no watch that it could share."""
    options: Options = config.architecture_settings
    if watch is None:
        watch = Watch()
        if role == "server":
            watch_process(watch, config.run.update_timeout, "the parameter server")
        gpus = getattr(options, f"{role}_gpus", 0.0)
        if not gpus:
            jax.config.update("jax_platforms", "cpu")
        elif gpus < 1.0:
            os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * gpus:.3f}")
        process.start(options.devices if role == "server" else 1)
    member = _Member(config)
    return Parts(member.make_agent(total_updates=total), member.host, member.play, watch)


class _Member(Hosted):
    """What evaluates."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.player = jax.devices()[0]
        options = config.architecture_settings
        # What steps environments as it is asked to; the cores that a measurement would give are those of who acts.
        kind = "serial" if options.workers == "auto" else options.workers
        self.workers = Workers(kind, options.worker_count, options.worker_timeout)

    def _supervisor(self) -> Supervisor:
        return Supervisor(0)  # whose environments fail is replaced, and counted
