"""SEED as a system: a server for environments anywhere, actor processes of its own, evaluation beside them."""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from boonta.architectures import learner, seed, seed_threads
from boonta.architectures.batching import Closed
from boonta.architectures.seed_inference import Plan
from boonta.architectures.seed_learners import Passing, Replaying
from boonta.architectures.seed_threads import Session, Taken, Threads
from boonta.core import settings, signals
from boonta.core.environment import check
from boonta.core.faults import Exhausted, Supervisor
from boonta.core.host import Workers, cores
from boonta.core.settings import multiple_of
from boonta.core.totals import Totals
from boonta.core.trace import Trace
from boonta.core.types import TimeStep
from boonta.experiments import config as configuration
from boonta.experiments import process
from boonta.experiments.config import Config
from boonta.experiments.devices import describe
from boonta.experiments.own_folder import OwnFolder
from boonta.experiments.replays import Arrays
from boonta.experiments.systems import placement
from boonta.experiments.systems.hosted import Hosted, Ledger, timeline
from boonta.experiments.systems.protocol import Failed, Idle, fitting
from boonta.experiments.tables import Seed as Options
from boonta.experiments.tables import patience
from boonta.replay.host import HostReplay
from boonta.replay.limiter import Limiter
from boonta.replay.windows import windows
from boonta.transport.security import Security, check_free, check_server, unguarded
from boonta.transport.server import Refused, Server
from boonta.transport.wire import Schema

ROLES = {"inference": "inference", "MainThread": "learner", "insert": "insert", "prefetch": "prefetch"}
CODES = {"there": "ALREADY_EXISTS", "room": "RESOURCE_EXHAUSTED", "never": "INVALID_ARGUMENT"}
SWITCH = 0.5e-3  # seconds that a thread keeps Python's lock while others wait for it
PATIENCE = 86_400.0  # seconds that actors of this run look for a place in it: they end with it in any case


class Seed(Hosted):
    """See `System`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Options = config.architecture_settings
        options, hosts = self.options, jax.process_count()
        self.name, self.settings = config.env, config.env_settings
        size = options.chunk or fitting(self.agent)
        envs = options.envs or fitting(self.agent)
        shared = max(self.batches) if self.replaying else size  # what learner devices share
        divides = lambda inference, learners: shared % learners == 0 and envs % inference == 0  # noqa: E731
        inference, learners = placement.asked(options, divides)
        if size % hosts:
            raise ValueError(
                f"architecture.chunk must be a multiple of the {hosts} hosts, got {size}{multiple_of(hosts, size)}"
            )
        parts = hosts * len(inference)
        if envs % parts:
            raise ValueError(
                f"architecture.envs must be a multiple of the number of inference devices of all hosts, "
                f"got {envs} and {parts}{multiple_of(parts, envs)}"
            )
        if options.local and options.certificate:
            raise ValueError(
                "architecture.certificate is for actors from elsewhere: set architecture.local=false (boonta serve)"
            )
        maximum = options.maximum or envs // parts
        asked = Workers(options.workers, options.worker_count, options.worker_timeout)
        self.actors = self._actors(envs // parts, len(inference), maximum, asked) if options.local else 0
        each = envs // hosts // (self.actors or 1)
        self.plan = Plan(
            inference, envs // hosts, size // hosts, options.minimum, maximum, options.deadline, options.ahead,
            patience(options), not options.local,
        )  # fmt: skip
        self.player, self._learners, self._sizes = inference[0], learners, (envs, size)
        self._make()
        self.iterations = configuration.iterations(config, self.steps, self.updates, self.learner.before)
        self.environments = envs
        self.agent = self.make_agent(total_updates=self.iterations * self.updates)
        self._make()
        self.trace = Trace(keep=bool(options.trace))
        self.threads: Threads | None = None
        self.server: Server | None = None
        self.supervisor = Supervisor(options.restarts)
        self.workers, self.why = self.host.choose(each, asked) if self.host.choose else (asked, "")
        self._processes: list[process.Tied] = []
        self._due: dict[int, float] = {}  # when those that ended are to be started anew
        self._mending = threading.Lock()
        self._folder: OwnFolder | None = None  # of a socket of its own

    def _actors(self, part: int, parts: int, maximum: int, workers: Workers) -> int:
        """Actor processes of this host's own, whose environments are equal parts of those of an inference device.

        Few, where that makes stepping no slower: a message and a batch of inference then hold more.
        """
        fits = [parts * n for n in range(1, part + 1) if part % n == 0 and part // n <= maximum]
        asked = self.options.actors
        if asked and asked not in fits:
            raise ValueError(
                f"architecture.actors must be one of {', '.join(map(str, fits))}: each has an equal part of the "
                f"{part} environments of an inference device, and no more than {maximum}; got {asked}"
            )
        choose = self.host.choose
        alone = not choose or (workers.kind == "auto" and choose(part, workers)[0].kind in ("serial", "vectorized"))
        return asked or (fits[0] if alone else max([n for n in fits if n <= cores()], default=fits[0]))

    def _make(self) -> None:
        """What is compiled, for the agent as it is."""
        envs, size = self._sizes
        self.unit = seed.make(self.agent, self.spec, envs, size // jax.process_count())
        self.learner: Passing | Replaying
        if self.replaying:
            self.learner = self._from_replay()
        else:
            self.learner = Passing(self.agent, self.unit, size, self._learners, self.seed)
        self.half, self.steps, self.updates = self.learner.half, self.learner.steps, self.learner.updates

    def start(self) -> learner.State:
        """The state; clients are answered from the first `advance` on."""
        if self.environment:
            check(self.environment)
        # Between an observation and its action four threads take turns; by itself each may keep the others for 5 ms.
        sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
        if self.options.trace:
            timeline(self.trace, self.options.trace)  # now, for it may be refused
        try:
            if address := self.options.address:
                check_server(address, self._security())
                check_free(address)
        except (ValueError, OSError) as error:
            raise settings.Refused(str(error)) from error
        self.threads = Threads(self.unit, self.spec, self.plan, self.seed, self.trace, self.watch)
        return self.learner.init(self._overrides())

    def advance(
        self, state: learner.State, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[learner.State, Totals, float]:
        threads, made = self.threads, Ledger()
        assert threads is not None
        if self.server is None:
            clock = time.perf_counter()
            threads.compile(state.params)
            self._names = self.unit.observed + self.learner.compile(state)
            self.compile_seconds += time.perf_counter() - clock
            threads.publish(state.params, state.updates)
            threads.start(self._life)
            self._serve(threads)

        def once() -> None:
            nonlocal state
            state, metrics, told = self.learner.iterate(state, threads)
            made.add(metrics, told)

        if jax.process_count() == 1:  # several go on until all have asked one another
            threads.asked = asked
        clock = time.perf_counter()
        try:
            self._loop(once, iterations, asked)
        except seed_threads.Failed as error:
            raise Failed(str(error)) from error
        except seed_threads.Asked:
            if not made.iterations:
                raise Idle from None
        elapsed = time.perf_counter() - clock
        self._slow_down(made.iterations, elapsed)
        shares = self._shares(self.trace, ROLES) | {"batch_mean": threads.batch_mean()}
        counts = {"joined": threads.joined, "dropped": threads.dropped, "environments": threads.present()}
        levels = {f"clients/{key}": float(value) for key, value in counts.items()} | self.learner.counts()
        return state, made.close(so_far, shares, levels | {"restarts": float(self.supervisor.incidents)}), elapsed

    def tensors(self) -> list[str]:
        return self._names

    def notices(self) -> list[str]:
        return self.supervisor.told() + (self.threads.told() if self.threads else [])

    def check(self) -> None:
        try:
            if self.threads:
                self.threads.check()
        except seed_threads.Failed as error:
            raise Failed(str(error)) from error

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        return describe(list(dict.fromkeys([*plan.inference, *self._learners]))) | {
            "inference": [int(device.id) for device in plan.inference],
            "learners": [int(device.id) for device in self._learners],
            "environments": plan.envs,
            "batches": {"minimum": plan.minimum, "maximum": plan.maximum, "deadline": plan.deadline},
            "actors": self.actors,
            "address": self.server.address if self.server else self.options.address,
            "workers": self.workers._asdict() | {"why": self.why},
        }

    def close(self) -> None:
        self._closing.set()
        with self._mending:
            for actor in self._processes:
                actor.ask_to_end()
        self.learner.stop()
        if self.threads:
            self.threads.stop()
        if self.server:
            self.server.close()
        for actor in self._processes:
            actor.end(5.0)
        if self._folder:
            self._folder.close()
        self._end_evaluation()
        if self.options.trace:
            timeline(self.trace, self.options.trace, forgive=True)

    def _from_replay(self) -> Replaying:
        options, hosts = self.options, jax.process_count()
        if len(self.agent.learners) != 1:
            raise ValueError(f"replay on the host feeds one learner, got {', '.join(self.agent.learners)}")
        (one,) = self.agent.learners.values()
        wanted, params = one.experience, jax.eval_shape(self.agent.init, jax.random.key(0))
        if wanted.batch % len(self._learners):
            raise ValueError(
                f"agent.batch must be a multiple of the learner devices of all hosts, got {wanted.batch} and "
                f"{len(self._learners)}{multiple_of(len(self._learners), wanted.batch)}"
            )
        batch, capacity = wanted.batch // hosts, -(-wanted.capacity // hosts)
        kept = {"stack": self.spec.stack, "compress": options.compress, "seed": (self.seed, jax.process_index())}
        sizes = windows(wanted)
        waiting = self.plan.envs * sizes.pieces * sizes.each  # for the pieces that complete them
        replay = HostReplay(wanted, batch, capacity + waiting, self.unit.piece(params), **kept)
        least, arriving = -(-wanted.minimum // hosts), self.plan.size * sizes.each
        timeout = math.inf if self.plan.patient else self.plan.timeout
        limiter = Limiter(wanted.samples_per_insert, least, arriving, batch, options.band, timeout)
        return Replaying(
            self.agent, self.unit, replay, limiter, self._learners, self.seed, options.prefetch, options.drawers
        )

    def at(self, iterations: int) -> int:
        return int(self.learner.before + iterations * self.steps) if iterations else 0

    def replays(self, state: learner.State) -> AbstractContextManager[Arrays]:
        return self.learner.arrays()

    def joined(
        self, rest: learner.State, fresh: learner.State, replays: Arrays | None, facts: dict[str, Any]
    ) -> learner.State:
        del fresh
        self._live_on(facts)
        if replays:
            self.learner.restore(replays)
        return rest

    def _supervisor(self) -> Supervisor:
        return self.supervisor

    def _serve(self, threads: Threads) -> None:
        """Listen, and start actors."""
        options = self.options
        self._folder = OwnFolder() if not options.address else None
        address = f"unix:{self._folder.path}/server" if self._folder else options.address
        limits = (self.plan.maximum, options.clients, options.silence or max(60.0, options.worker_timeout))
        self.server = Server(
            address, Schema(self.spec), _door(threads), self.seed, self._security(), *limits, threads.refused
        )
        where = self.server.address
        if told := unguarded(where, self._security()):
            print(f"boonta: {told}", file=sys.stderr)
        if not options.local:
            print(
                f"boonta: serving {self.name} at {where}, for {self.plan.envs} environments in all: boonta actor "
                f"{self.name} --server {where} --envs K",
                file=sys.stderr,
            )
        self._processes = [self._actor(i) for i in range(self.actors)]
        threads.look = self._mend

    def _security(self) -> Security:
        options = self.options
        return Security(options.certificate, options.key, options.authority, os.environ.get("BOONTA_TOKEN", ""))

    def _actor(self, i: int) -> process.Tied:
        assert self.server is not None
        each, first = self.plan.envs // self.actors, jax.process_index() * self.plan.envs
        options = {
            "server": self.server.address, "envs": each, "first": first + i * each, "name": f"actor {i}",
            "patience": PATIENCE, "workers": self.workers.kind, "worker-count": self.workers.count,
            "worker-timeout": self.workers.timeout,
        }  # fmt: skip
        words = ["actor", self.name, "--tied", *(f"--{key}={value}" for key, value in options.items())]
        for key, value in self.settings.items():
            words += ["--set", f"env.{key}={value if isinstance(value, str) else json.dumps(value)}"]
        alone = os.environ | {"JAX_PLATFORMS": "cpu"}
        with signals.held():
            return process.Tied([sys.executable, "-P", "-m", "boonta", *words], env=alone)

    def _mend(self) -> None:
        """Start anew actors of this run that ended."""
        if not self._mending.acquire(blocking=False):  # another thread is at it
            return
        try:
            if not self._closing.is_set():
                self._mend_all()
        finally:
            self._mending.release()

    def _mend_all(self) -> None:
        for i, actor in enumerate(self._processes):
            if (code := actor.poll()) is None:
                continue
            if i not in self._due:
                why = f"its process ended with exit code {code}"
                try:
                    restart = self.supervisor.incident(f"actor {i}", why, "failed and is started anew")
                except Exhausted as error:
                    raise seed_threads.Failed(str(error)) from error
                self._due[i] = time.monotonic() + restart.delay
            if time.monotonic() >= self._due[i]:
                del self._due[i]
                self._processes[i] = self._actor(i)


class _Visitor:
    """A session, whose refusals are those of the wire."""

    def __init__(self, session: Session) -> None:
        self.session, self.first, self.life = session, session.first, session.life

    def act(self, timestep: TimeStep) -> np.ndarray:
        try:
            return self.session.act(timestep)
        except Closed as error:
            raise Refused("UNAVAILABLE", "the server ends") from error

    def leave(self, why: str) -> None:
        self.session.leave(why)


def _door(threads: Threads) -> Callable[[int, int, str], _Visitor]:
    def join(count: int, first: int, name: str) -> _Visitor:
        try:
            session = threads.join(count, first, name)
        except Taken as error:
            raise Refused(CODES[error.why], str(error)) from error
        if threads.plan.patient:
            whole = f"{threads.present()} of {threads.plan.envs} are there"
            sys.stderr.write(f"boonta: {session.environments()} joined ({name}); {whole}\n")
        return _Visitor(session)

    return join
