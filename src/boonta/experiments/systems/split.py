"""Split as a system: processes of this machine, what they share, and the state that they come to between two stages."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.architectures import split
from boonta.architectures.fleet_roles import Parts
from boonta.architectures.learner import State as Learner
from boonta.architectures.learner import sampled
from boonta.architectures.split_pace import pace
from boonta.architectures.split_roles import Acting, Learning
from boonta.architectures.split_wiring import Plan, Wiring
from boonta.core import devices, random, totals
from boonta.core import episodes as counting
from boonta.core.crew import Crew
from boonta.core.environment import check
from boonta.core.exchange import Disconnected, Exchange
from boonta.core.faults import Supervisor
from boonta.core.host import Workers
from boonta.core.settings import multiple_of
from boonta.core.totals import Totals
from boonta.core.types import Array, Params, PyTree
from boonta.experiments import config as configuration
from boonta.experiments import process, registry
from boonta.experiments.config import Config
from boonta.experiments.devices import describe
from boonta.experiments.replays import Arrays
from boonta.experiments.systems import split_processes
from boonta.experiments.systems.hosted import Hosted
from boonta.experiments.systems.protocol import Failed, Idle
from boonta.experiments.tables import Split as Options
from boonta.experiments.tables import patience
from boonta.experiments.watchdog import watch_process
from boonta.replay.windows import pace as steps_before
from boonta.replay.windows import windows


class State(NamedTuple):
    """What a run comes to between two stages.

    Attributes:
        params: all groups, each from its owner.
        learners: each learner's state without parameters, its key as bare numbers, by name.
        replays: nothing: experience lies in the exchange.
        updates: int32, of all learners together.
    """

    params: Params
    learners: dict[str, Learner]
    replays: dict[str, PyTree]
    updates: Array


class Split(Hosted):
    """See `System`."""

    def __init__(self, config: Config) -> None:
        if jax.distributed.is_initialized():
            raise ValueError("a split run has one driver; its other machines join it by `boonta split-worker`")
        jax.config.update("jax_platforms", "cpu")  # accelerators are the learners'
        super().__init__(config)
        self.options: Options = config.architecture_settings
        self.workers = Workers(self.options.workers, self.options.worker_count, self.options.worker_timeout)
        self.player = jax.devices()[0]
        self.wiring = wired(self)
        split_processes.check(self.options, self.wiring.plan.roles())
        pacing, each = self.wiring.plan.pace, self.wiring.each
        self.steps = float(self.wiring.plan.workers * each)
        self.updates = max(1, round(sum(pacing.ratios.values()) * int(self.steps)))
        self.iterations = configuration.iterations(config, self.steps, self.updates)
        self.environments = self.wiring.plan.workers * self.wiring.plan.envs
        self.supervisor = Supervisor(self.options.restarts)
        self.split: split.Split | None = None
        self._exchange: Exchange | None = None
        self._crew: Crew | None = None
        self._replay: Arrays | None = None
        self._made = 0

    def shapes(self) -> PyTree:
        here = jax.sharding.SingleDeviceSharding(self.player)
        shapes = jax.eval_shape(self._fresh)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)

    def start(self) -> State:
        """The state; processes begin with the first `advance`."""
        if self.environment:
            check(self.environment)
        return jax.jit(self._fresh)()

    def advance(
        self, state: State, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[State, Totals, float]:
        with _loud():
            if self.split is None:
                clock = time.perf_counter()
                there = self._begin(state, asked)
                self.compile_seconds += time.perf_counter() - clock
                if not there:
                    raise Idle
            running = self.split
            assert running is not None
            clock, before = time.perf_counter(), self._made
            told = running.stage(self.at(before + iterations), asked)
            elapsed = time.perf_counter() - clock
            self._made = running.steps() // int(self.steps)
            if self._made == before:
                raise Idle
            learners = running.states()
        whole = split.params(learners, self.wiring.agent)
        updates = sum(int(one.updates) for one in learners.values())
        made = updates - int(state.updates)
        without = {name: one._replace(params={}) for name, one in learners.items()}
        state = jax.tree.map(jnp.asarray, State(whole, without, {}, jnp.int32(updates)))
        return state, totals.after(so_far, self._totals(told, self._made - before, made, elapsed)), elapsed

    def replays(self, state: State) -> AbstractContextManager[Arrays]:
        with _loud():
            return nullcontext(self.split.arrays() if self.split else self._replay or {})

    def joined(self, rest: State, fresh: State, replays: Arrays | None, facts: dict[str, Any]) -> State:
        del fresh
        self._live_on(facts)
        self._made = int(facts["iterations"])
        self._replay = {name: np.asarray(x) for name, x in replays.items()} if replays else None
        if self._replay:
            wanted = self.wiring.pieces.nbytes
            for i in range(self.wiring.plan.workers):
                if (found := self._replay[f"pieces/{i}"].shape[1:]) != (wanted,):
                    raise ValueError(f"experience of {list(found)} bytes a piece, not {wanted}")
        return rest

    def tensors(self) -> list[str]:
        return self.wiring.actor.observed + [name for each in self.wiring.metrics.values() for name in each]

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"iterations": self._made}

    def notices(self) -> list[str]:
        return self.supervisor.told()

    def check(self) -> None:
        with _loud():
            if self.split:
                self.split.look_after()

    def describe(self) -> dict[str, Any]:
        plan = self.wiring.plan
        return describe([self.player]) | {
            "transport": self.options.transport,
            "processes": {"environment": plan.workers, **plan.members},
            "environments_of_a_process": plan.envs,
            "updates_per_step": {name: float(ratio) for name, ratio in plan.pace.ratios.items()},
        }

    def close(self) -> None:
        with ExitStack() as ending:  # each is ended, whatever becomes of the others
            for one in (self._crew, self._exchange, self.split):
                if one:
                    ending.callback(one.close)
            ending.callback(self._end_evaluation)

    def _fresh(self) -> State:
        """The state at the beginning; learners draw from different streams."""
        agent, key, whole, learners = self.wiring.agent, random.key(self.seed), {}, {}
        for i, name in enumerate(agent.learners):
            one = sampled(self.wiring.alone(name), 0, self.spec.stack).init(key, self._overrides())
            whole = one.params
            one = one._replace(params={}, key=jax.random.fold_in(one.key, i))
            learners[name] = random.without_keys(one)
        return State(whole, learners, {}, jnp.int32(0))

    def _begin(self, state: State, asked: Callable[[], bool]) -> bool:
        """The processes, who go on from this state; whether all came before it was asked to end."""
        options = self.options
        meeting = split_processes.place(self.config, self.wiring.layout, self._life)
        self._exchange = meeting.exchange
        begin = partial(split_processes.started, self.config, meeting, self.wiring.plan.roles())
        if options.cluster:
            from boonta.experiments.systems import split_cluster
            from boonta.transport.ray import Cluster

            self._crew = Cluster(options.cluster, 0.0)
            begin = partial(split_cluster.started, self._crew, self.config, meeting)
        seconds = patience(options)
        running = split.Split(self.wiring, meeting.exchange, begin, self.supervisor, seconds, self._life)
        bare = jax.device_get(state)
        states = {name: one._replace(params=bare.params) for name, one in bare.learners.items()}
        running.restore(states, self._replay, self._made)
        self._replay, self.split = None, running
        if options.remote:
            print(f"boonta: {meeting.invitation}", file=sys.stderr)
        return running.start(asked)

    def _totals(self, told: split.Told, iterations: int, made: int, elapsed: float) -> Totals:
        """What iterations come to, [1]."""
        acted = [one for each in told.actors.values() for one in each]
        finished = counting.merge_all([one.finished for one in acted])
        lags = [(one.lag * one.pieces, one.lag_max, one.pieces) for one in acted]
        pieces = max(sum(n for _, _, n in lags), 1)
        shares: dict[str, Any] = {
            "policy_lag_mean": sum(lag for lag, _, _ in lags) / pieces,
            "policy_lag_max": max((most for _, most, _ in lags), default=0),
            "busy/environment": sum(one.seconds for one in acted) / elapsed / self.wiring.plan.workers,
        }
        levels: dict[str, Any] = {"restarts": self.supervisor.incidents}
        bad = next((int(one.bad) for one in acted if one.bad), 0)
        offset = len(self.wiring.actor.observed)
        for name, names in self.wiring.metrics.items():
            mine = told.learners.get(f"{name}/0", [])
            updates = sum(int(one.made) for one in mine)
            mean = lambda values, mine=mine, updates=updates: float(  # noqa: E731
                np.sum([v * one.made for v, one in zip(values, mine, strict=True)]) / updates if updates else np.nan
            )
            for key in self.wiring.learned[name].example.metrics:
                shares[key] = mean([one.metrics[key] for one in mine])
            shares |= {
                f"lag/{name}_mean": mean([one.lag for one in mine]),
                f"lag/{name}_max": max((int(one.lag_max) for one in mine), default=0),
                f"busy/{name}": sum(one.seconds for one in mine) / elapsed,
            }
            levels |= {
                f"updates/{name}": float(self._updates_of(name)),
                f"lost/{name}": max((int(one.lost) for one in mine), default=0),
            }
            if not bad:
                bad = next((offset + int(one.bad) for one in mine if one.bad), 0)
            offset += len(names)
        return totals.of_one_member(totals.alike(iterations, made, bad, finished, shares, levels))

    def _updates_of(self, name: str) -> int:
        assert self._exchange is not None
        return self._exchange.totals()[f"updates/{name}"]

    def _supervisor(self) -> Supervisor:
        return self.supervisor


def wired(member: Hosted) -> Wiring:
    """What a member's processes exchange."""
    config = member.config
    options: Options = config.architecture_settings
    make = partial(registry.agent(config.agent).factory, member.spec, config.agent_settings)
    agent = make()
    workers, envs = options.environments, options.envs
    members = {name: options.value_processes if name != "policy" else 1 for name in agent.learners}
    for name, learner in agent.learners.items():
        shares = members[name] * options.devices
        if learner.experience.batch % shares:
            raise ValueError(
                f"{name}'s batch must be a multiple of its devices ({members[name]} processes, "
                f"architecture.value_processes, of {options.devices}, architecture.devices), got "
                f"{learner.experience.batch} and {shares}{multiple_of(shares, learner.experience.batch)}"
            )
    if options.lag < options.publish:
        raise ValueError(
            f"architecture.lag must be at least architecture.publish, for which parameters are behind in any case; got "
            f"{options.lag} and {options.publish}"
        )
    wishes = [one.experience for one in agent.learners.values()]
    if any(not wish.capacity for wish in wishes):
        raise ValueError(f"split is for agents that learn from replay, which {config.agent} does not; use sebulba")
    sizes = [windows(wish) for wish in wishes]
    moved = workers * envs * sizes[0].unroll
    before = max(
        steps_before(size, wish.minimum, wish.batch, wish.samples_per_insert)[0]
        for size, wish in zip(sizes, wishes, strict=True)
    )
    # Until then what began first is complete as well.
    minimum = before + moved * max(size.pieces for size in sizes)
    pacing = pace(agent, minimum, moved, options.band, options.free_running)
    total = int(max(pacing.ratios.values()) * max(config.run.steps - minimum, 0))
    plan = Plan(
        workers, envs, members, pacing,
        max(wish.capacity for wish in wishes), options.publish, options.lag, member.seed, member.members[0].overrides,
        member.drop, Workers(options.workers, options.worker_count, options.worker_timeout),
    )  # fmt: skip
    tables = config.tables()
    alike = json.dumps([version("boonta"), tables["agent"], tables["env"]], sort_keys=True)
    return Wiring(make(total_updates=total), member.spec, plan, alike)


def work(role: str, invited: split_processes.Invited) -> None:
    """Be one process of a run until it ends."""
    kind, _, number = role.partition("/")
    options, several = invited.config.architecture_settings, invited.hosts.processes or 1
    process.start(max(options.devices, 1) * several if kind != "environment" else 1, invited.hosts)
    member = _Member(invited.config)
    wiring = wired(member)
    if role not in wiring.plan.roles():
        raise ValueError(
            f"--role must be one of {', '.join(wiring.plan.roles())}, which the run declares; got {role!r}"
        )
    exchange = invited.join(wiring.layout, role)
    try:
        moving: Acting | Learning
        if kind == "environment":
            make = lambda: Parts(member.make_agent(), member.host, member.play)  # noqa: E731
            moving = Acting(make, wiring, exchange, int(number), invited.life)
        else:
            mesh = devices.mesh(_devices(options.devices))
            moving = Learning(wiring, exchange, kind, int(number), mesh, options.compress)
            watch_process(moving.watch, invited.config.run.update_timeout, role)
        try:
            moving.run()
        except ValueError as error:  # of a collective that lost a process, say: no matter of what was asked for
            raise RuntimeError(f"{role} fails: {error}") from error
    finally:
        exchange.close()


def _devices(count: int) -> list[Any]:
    """The first ones of each process.

    Raises:
        ValueError: a process has fewer.
    """
    found: dict[int, list[Any]] = {}
    for device in jax.devices():
        found.setdefault(device.process_index, []).append(device)
    if (fewest := min(len(those) for those in found.values())) < count:
        raise ValueError(f"architecture.devices must be at most {fewest} here, got {count}")
    return [device for those in found.values() for device in those[:count]]


@contextmanager
def _loud() -> Iterator[None]:
    """What ends the run says so in the run's own words."""
    try:
        yield
    except (split.Failed, Disconnected) as error:
        raise Failed(str(error)) from error


class _Member(Hosted):
    """What acts."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.player = jax.devices()[0]

    def _supervisor(self) -> Supervisor:
        return Supervisor(0)  # whose environments fail is replaced, and counted
