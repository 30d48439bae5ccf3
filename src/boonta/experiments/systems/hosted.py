"""What systems share whose environments step on hosts: evaluation beside training, timelines, metrics by iteration."""

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta import envs
from boonta.architectures import learner
from boonta.architectures.turns import together
from boonta.core import episodes as counting
from boonta.core import random, totals
from boonta.core.agent import Agent
from boonta.core.environment import Environment
from boonta.core.faults import Broken, Guard, Supervisor
from boonta.core.host import Workers
from boonta.core.settings import Refused
from boonta.core.totals import Totals
from boonta.core.trace import Trace
from boonta.core.types import Params, PyTree
from boonta.core.watch import Watch
from boonta.envs.served import serve
from boonta.envs.trials import stepped_by
from boonta.experiments import agreement, evaluation, files, registry
from boonta.experiments import config as configuration
from boonta.experiments.config import Config
from boonta.experiments.evaluation import Film, Scores
from boonta.experiments.replays import Arrays, put_back, taken
from boonta.experiments.systems.protocol import Aside, beginning_with, done, replaying, said_of, unheard

CLOSING = 10.0  # seconds that closing waits for an evaluation
BETWEEN = 1.0  # seconds between the moments in which hosts ask one another whether to stop
UNFETCHED = 8  # iterations whose metrics may still be on their way
RESUMED = 1 << 16  # lives of environments between one start of a run and the next


class Hosted:
    """See `System`; what remains is who acts and learns where.

    Attributes:
        player: the device that evaluations use.
        half: what the learner compiles.
        synchronous: whether evaluations are waited for, so that a run can be repeated.
        workers: what steps the environments of evaluations.
    """

    player: Any
    half: learner.Halves | learner.Sampled
    steps: float
    synchronous = False
    workers = Workers()

    def __init__(self, config: Config) -> None:
        self.config = config
        where = config.architecture_settings
        with stepped_by(Workers(where.workers, where.worker_count, where.worker_timeout)):
            made = envs.make(config.env, **config.env_settings)
        self.environment = made if isinstance(made, Environment) else None
        self.host = serve(made) if isinstance(made, Environment) else made
        self.spec = self.host.spec
        self.remarks = [*self.host.remarks, *said_of(config, self.spec)]
        self.members = configuration.members(config)
        if len(self.members) > 1:
            raise ValueError(
                f"{config.architecture} trains one member at a time, got {len(self.members)} (run.seeds, run.sweep)"
            )
        self.seed = self.members[0].seed
        self.drop = config.run.on_nan == "drop"
        self.given: Params | None = None
        self.agent = self.make_agent()
        self.batches = [one.experience.batch for one in self.agent.learners.values()]
        self.greedy = evaluation.Greedy(self.agent)
        self.compile_seconds, self.watch = 0.0, Watch()
        self.progress: Callable[[str], None] = unheard
        self.replaying = replaying(self.agent)
        self._evaluator = Aside("evaluator")
        self._evaluation: Future[Scores] | None = None
        self._kept: tuple[int, Guard] | None = None  # how many environments evaluations have, and they
        self._closing = threading.Event()
        self._life = 0  # of environments
        self._began: dict[str, float] = {}
        self._pace = 1  # iterations between the moments in which hosts ask one another

    def make_agent(self, total_updates: int = 0) -> Agent:
        """The agent, its learners as they are where they all learn in one place."""
        factory = registry.agent(self.config.agent).factory
        agent = together(factory(self.spec, self.config.agent_settings, total_updates=total_updates))
        return beginning_with(agent, lambda: self.given)

    def at(self, iterations: int) -> int:
        return int(iterations * self.steps)

    def shapes(self) -> PyTree:
        here = jax.sharding.SingleDeviceSharding(self.player)
        shapes = self.rest(jax.eval_shape(lambda: self.half.init(random.key(self.seed), self._overrides())))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)

    def rest(self, state: learner.State) -> learner.State:
        return state._replace(replays={})

    def replays(self, state: learner.State) -> AbstractContextManager[Arrays]:
        return nullcontext(taken(state.replays))

    def joined(
        self, rest: learner.State, fresh: learner.State, replays: Arrays | None, facts: dict[str, Any]
    ) -> learner.State:
        self._live_on(facts)
        return rest._replace(replays=put_back(fresh.replays, replays) if replays else fresh.replays)

    def evaluate(self, state: learner.State, episodes: int) -> "Future[Scores]":
        if jax.process_index():  # the first host plays for all
            zeros = np.zeros((1, episodes), np.float32)
            return done(Scores(zeros, zeros.astype(np.int32), zeros.astype(bool)))  # type: ignore[arg-type]
        params = jax.device_put(jax.tree.map(lambda x: x.addressable_data(0), state.params), self.player)

        def play() -> Scores:
            scores = self._play(params, episodes)
            return Scores(*(x[None] for x in scores))

        self._evaluation = done(play()) if self.synchronous else self._evaluator.ask(play)
        return self._evaluation

    def play(self, params: Params, episodes: int) -> Scores:
        try:
            return self._play(params, episodes)
        finally:
            self._forget_examined()

    def _play(self, params: Params, episodes: int) -> Scores:
        supervisor = self._supervisor()
        for life in itertools.count():
            try:
                with jax.default_device(self.player):
                    return evaluation.on_host(
                        self.greedy, params, self._examined(episodes, life), episodes, self.config.run.eval_steps,
                        self._closing.is_set, lambda text: self.progress(text),
                    )  # fmt: skip
            except Broken as error:
                self._forget_examined()
                who = "environments of an evaluation"
                restart = supervisor.incident(who, error, "failed and are made anew")
                self._closing.wait(restart.delay)
        raise AssertionError("not reached")

    def _examined(self, episodes: int, life: int) -> Guard:
        """The environments of evaluations, which are kept where they can begin the same episodes anew."""
        examiner = self.host.examiner or self.host
        if not (self._kept and self._kept[0] == episodes and examiner.repeatable):
            self._forget_examined()
            make = partial(examiner.make, np.arange(episodes), evaluation.SEED, life, self.workers)
            self._kept = episodes, Guard(make, self.drop, self._supervisor().tell)
        return self._kept[1]

    def _forget_examined(self) -> None:
        """Close them, in the thread that has stepped them."""
        if self._kept:
            self._kept[1].__exit__()
            self._kept = None

    def film(self, params: Params, seed: int, steps: int) -> Film:
        examiner = self.host.examiner or self.host
        drawn = examiner.drawn() if examiner.drawn else examiner
        return evaluation.film_on_host(self.greedy, drawn, params, seed, steps)

    def params(self, state: learner.State, member: int) -> Params:
        del member
        return state.params

    def facts(self) -> dict[str, Any]:
        return {"life": self._life}

    def _live_on(self, facts: dict[str, Any]) -> None:
        """Environments begin in lives that were not yet."""
        self._life = (int(facts["life"]) // RESUMED + 1) * RESUMED

    def _supervisor(self) -> Supervisor:
        """How often environments may fail."""
        raise NotImplementedError

    def _overrides(self) -> dict[str, Any]:
        return {key: jnp.float32(value) for key, value in self.members[0].overrides.items()}

    def _loop(self, step: Callable[[], None], iterations: int, asked: Callable[[], bool]) -> None:
        """Make iterations until asked to stop."""
        for made in range(1, iterations + 1):
            step()
            if made % self._pace == 0 and not agreement.together(not asked()):
                return

    def _slow_down(self, made: int, elapsed: float) -> None:
        """Let hosts ask one another about once in so many seconds."""
        if jax.process_count() > 1:
            self._pace = int(agreement.shared(np.int32(max(BETWEEN * made / elapsed, 1))))

    def _shares(self, trace: Trace, who: dict[str, str]) -> dict[str, float]:
        """What share of their time threads spent on what since the last call; `who` names them by their first word."""
        sums: dict[str, float] = {}
        for thread, parts in trace.sums().items():
            if role := who.get(thread.split()[0]):
                for name, seconds in parts.items():
                    place = f"time/{role}/{name}"
                    sums[place] = sums.get(place, 0.0) + seconds
        new = {key: value - self._began.get(key, 0.0) for key, value in sums.items()}
        self._began = sums
        totals = {role: sum(v for k, v in new.items() if k.split("/")[1] == role) for role in who.values()}
        self._spent = new
        return {key: value / max(totals[key.split("/")[1]], 1e-9) for key, value in new.items()}

    def _end_evaluation(self) -> None:
        self._closing.set()
        if self.synchronous:
            self._forget_examined()
        else:
            wait([self._evaluator.ask(self._forget_examined)], CLOSING)
            self._evaluator.end()


def timeline(trace: Trace, where: str, forgive: bool = False) -> None:
    """Write the timeline of this host so far; hosts after the first have files of their own.

    Raises:
        Refused: it cannot be written; with `forgive` that is only told.
    """
    file = Path(where)
    if host := jax.process_index():
        file = file.with_name(f"{file.stem}-host{host}{file.suffix}")
    try:
        files.write_text(file, trace.timeline())
    except OSError as error:
        message = f"architecture.trace must be a file that can be written, got {file}: {error}"
        if not forgive:
            raise Refused(message) from error
        print(f"boonta: WARNING: {message}", file=sys.stderr)


class Ledger:
    """Metrics of iterations, fetched as they come and summed; on all hosts."""

    def __init__(self) -> None:
        self.iterations = 0
        self._waiting: deque[tuple[dict[str, Any], list[Any]]] = deque()
        self._totals: Totals | None = None

    def add(self, metrics: dict[str, Any], told: list[Any]) -> None:
        """An iteration: its metrics, and (finished episodes, health) of parts of its experience."""
        self.iterations += 1
        self._waiting.append((metrics, told))
        if len(self._waiting) > UNFETCHED:
            self._fetch()

    def close(self, so_far: Totals | None, shares: Mapping[str, float], levels: Mapping[str, float]) -> Totals:
        """What they come to, [1], with those of before.

        Args:
            so_far: Totals [1] of before, if there are any.
            shares: metrics that are the same of all of them; NaN where there is nothing to tell.
            levels: what is so by now.
        """
        while self._waiting:
            self._fetch()
        assert self._totals is not None
        found = totals.with_shares(self._totals, shares, levels)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            seen = (found.finished, found.bad, found.bad_at)
            finished, bad, at = multihost_utils.process_allgather(jax.tree.map(np.asarray, seen))  # [hosts] each
            hosts = range(jax.process_count())
            earliest = min(hosts, key=lambda host: at[host] or np.inf)
            merged = counting.merge_all([counting.Finished(*(x[host] for x in finished)) for host in hosts])
            found = found._replace(finished=merged, bad=bad[earliest], bad_at=at[earliest])
        return totals.after(so_far, totals.of_one_member(found))

    def _fetch(self) -> None:
        metrics, told = jax.device_get(self._waiting.popleft())
        observed = next((int(one.bad) for one in told if one.bad), 0)
        finished = counting.merge_all([one.finished for one in told])
        new = totals.once(metrics | finished._asdict() | {"health": observed or metrics["health"]})
        self._totals = totals.merge(self._totals, new) if self._totals else new
