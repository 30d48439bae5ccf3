"""Who there is in a split run: processes that act, and processes that learn. Each looks, moves if it may, and tells.

None calls another: all they know of one another is in the exchange. What each needs to go on after it was killed is
there too, so a process that takes its place begins with a look.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from boonta.architectures.fleet_roles import Make, Rollout
from boonta.architectures.learner import State, sample_like, sampled, sampled_updater, starter
from boonta.architectures.learning import initial
from boonta.architectures.split_wiring import BEGUN, GO, LIMIT, MOST, SAVE, STOP, ActorTold, LearnerTold, Wiring
from boonta.core import acting, devices, nests, random
from boonta.core.episodes import Finished, merge_all
from boonta.core.exchange import Exchange
from boonta.core.settings import Refused
from boonta.core.types import Params, PyTree
from boonta.core.watch import Watch
from boonta.replay.host import HostReplay

TELL = 0.1  # seconds between what a process tells of itself
BEAT = 0.05  # seconds between signs that it moves
HANDED = 60.0  # seconds in which a learner must find what the driver has handed over


class Others:
    """The parameter groups that a process reads, as new as they can be had.

    Args:
        wiring: Wiring.
        exchange: Exchange.
        groups: which it reads.
    """

    def __init__(self, wiring: Wiring, exchange: Exchange, groups: tuple[str, ...]) -> None:
        self._wiring, self._exchange = wiring, exchange
        learners = wiring.agent.learners
        self.versions = {name: -1 for name in learners if set(learners[name].owns) & set(groups)}
        self._groups = groups

    def look(self) -> Params:
        """The groups of which there is a newer version than was read."""
        found: Params = {}
        for name, version in self.versions.items():
            if there := self._exchange.newest(f"params/{name}", version):
                self.versions[name], data = there
                owned = self._wiring.params[name].unpack(data)
                found |= {group: x for group, x in owned.items() if group in self._groups}
        return found

    def lag(self, totals: Mapping[str, int]) -> int:
        """Updates that what was read is behind, at most. It never stays so: parameters are published before counts."""
        return max([0, *(totals[f"updates/{name}"] - max(v, 0) for name, v in self.versions.items())])


class Moving:
    """A process that shows that it moves.

    Args:
        exchange: Exchange.
        role: what it is called.
    """

    def __init__(self, exchange: Exchange, role: str) -> None:
        self.exchange, self.role = exchange, role
        self._beats, self._shown = exchange.totals()[f"beat/{role}"], 0.0

    def beat(self) -> None:
        """Show it, now and then."""
        if time.monotonic() - self._shown > BEAT:
            self._beats, self._shown = self._beats + 1, time.monotonic()
            self.exchange.put(f"beat/{self.role}", self._beats)


class Acting(Moving):
    """A process of environments.

    Args:
        make: the agent and its environments.
        wiring: Wiring.
        exchange: Exchange.
        which: of the processes that act.
        life: of its environments.
    """

    def __init__(self, make: Make, wiring: Wiring, exchange: Exchange, which: int, life: int) -> None:
        super().__init__(exchange, f"environment/{which}")
        plan, self.wiring, self.which = wiring.plan, wiring, which
        first, everyone = which * plan.envs, plan.workers * plan.envs
        self.rollout = Rollout(make, first, plan.envs, everyone, life, plan.seed, plan.simulators, plan.finite)
        self.log = f"pieces/{which}"
        self.others = Others(wiring, exchange, wiring.actor.reads)
        key = acting.streams(random.key(plan.seed)).params
        params, _ = jax.jit(lambda: initial(wiring.agent, key, plan.overrides))()
        self.params = {name: params[name] for name in wiring.actor.reads}
        self._lag, self._told = 0, list[tuple[Any, int]]()
        self._since = time.monotonic()

    def run(self) -> None:
        """Until the driver ends it."""
        wiring, exchange, log = self.wiring, self.exchange, self.log
        pace, names, idle, heard = wiring.plan.pace, wiring.agent.learners, 0, -1
        while not (totals := exchange.totals())[STOP]:
            self.beat()
            if totals[LIMIT] != heard:
                heard = totals[LIMIT]
                exchange.put(f"heard/{self.which}", heard)
            updates = {name: totals[f"updates/{name}"] for name in names}
            here = exchange.length(log) < heard // wiring.quota
            if here and pace.may_step(wiring.steps(exchange), updates, totals[BEGUN]) and self._read(totals):
                self._move()
                idle = 0
            else:
                exchange.pause(idle)
                idle += 1
            if not here or time.monotonic() - self._since > TELL:
                self._tell()
        self._tell()
        self.rollout.close()

    def _read(self, totals: Mapping[str, int]) -> bool:
        """Take the newest parameters; whether they are new enough."""
        if new := self.others.look():
            self.params = self.params | new
        self._lag = self.others.lag(totals)
        return self._lag <= self.wiring.plan.lag

    def _move(self) -> None:
        # A version that is nobody's: of several learners' groups, that of the one that is oldest.
        version = max(min(self.others.versions.values()), 0)
        trajectory, told = self.rollout.run(self.params, version, self.beat)
        self._told.append((told, self._lag))
        self.exchange.append(self.log, self.wiring.pieces.pack(trajectory))

    def _tell(self) -> None:
        self._since = time.monotonic()
        if not self._told:
            return
        told, lags = [one for one, _ in self._told], [lag for _, lag in self._told]
        finished = Finished(*(np.asarray(x, np.float32) for x in merge_all([one.finished for one in told])))  # type: ignore[arg-type]
        bad = next((int(one.bad) for one in told if one.bad), 0)
        seconds = sum(one.seconds for one in told)
        summed = ActorTold(
            finished, np.int32(bad), np.float32(seconds), np.int32(len(told)), np.float32(np.mean(lags)),
            np.int32(max(lags)),
        )  # fmt: skip
        self._told = []
        self.exchange.append(f"told/{self.role}", self.wiring.acted.pack(summed))


class Learning(Moving):
    """A process that learns; of several that share a learner's batch, one speaks for all.

    Args:
        wiring: Wiring.
        exchange: Exchange.
        name: of the learner.
        rank: which of its processes.
        mesh: of the devices of all of them.
        compress: keep observations in replay compressed.
    """

    def __init__(
        self, wiring: Wiring, exchange: Exchange, name: str, rank: int, mesh: Mesh, compress: bool = False
    ) -> None:
        super().__init__(exchange, f"{name}/{rank}")
        self.watch = Watch()
        plan, learner = wiring.plan, wiring.agent.learners[name]
        self.wiring, self.name, self.rank, self.mesh, self.wanted = wiring, name, rank, mesh, learner.experience
        half = sampled(wiring.alone(name), 0, wiring.spec.stack)
        count = plan.members[name]
        place = list(wiring.agent.learners).index(name)
        self.replay = HostReplay(
            self.wanted, self.wanted.batch // count, plan.capacity, wiring.viewed(name), wiring.spec.stack, compress,
            (plan.seed, place, rank),
        )  # fmt: skip
        kept = wiring.layout.logs["pieces/0"][1]
        self.cursors = [max(exchange.length(f"pieces/{i}") - kept, 0) for i in range(plan.workers)]
        self._caught_up, self.lost = False, 0  # pieces that came and went since it had caught up
        self.others = Others(wiring, exchange, tuple({*learner.reads} - {*learner.owns}))
        self._sharding, self._everywhere = NamedSharding(mesh, P(devices.LEARNERS)), NamedSharding(mesh, P())
        self._update = sampled_updater(half, mesh)
        self.state: State = starter(half, mesh)(random.key(plan.seed), dict(plan.overrides))
        self._go_on()
        self._compile()
        self._lag, self._made = 0, list[tuple[Any, int]]()
        self._busy, self._since = 0.0, time.monotonic()

    def _go_on(self) -> None:
        """From the last state there is, with the newest parameters.

        Raises:
            Refused: there is none, though the driver writes one before anything begins.
        """
        until = time.monotonic() + HANDED
        while not (there := self.exchange.newest(f"state/{self.name}", -1)):
            if time.monotonic() > until:
                raise Refused(f"{self.role} finds no state to go on from, as if the server had forgotten everything")
            time.sleep(BEAT)
        bare, like = self._placed(self.wiring.states[self.name].unpack(there[1])), self.state
        self.state = jax.jit(lambda bare: random.with_keys(bare, like))(bare)
        if there := self.exchange.newest(f"params/{self.name}", int(self.state.updates)):
            owned = self.wiring.params[self.name].unpack(there[1])
            owned, updates = self._placed((owned, np.int32(there[0])))
            self.state = self.state._replace(params=self.state.params | owned, updates=updates)
        self.updates = int(self.state.updates)
        if self.rank == 0:
            self.exchange.put(f"updates/{self.name}", self.updates)
            self.exchange.put(f"next/{self.name}", self.updates)

    def _compile(self) -> None:
        """Before the first move, which is waited for longer than others."""
        like = sample_like(self.wiring.viewed(self.name), self.wanted, self.wanted.batch, self.wiring.spec.stack)
        sample = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=self._sharding), like)
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._everywhere), self.state)
        self._update = self._update.lower(state.params, tuple(state[1:]), sample).compile()

    def _placed(self, tree: PyTree) -> PyTree:
        """The same on all devices, of all processes."""
        return devices.placed(tree, self._everywhere)

    def run(self) -> None:
        """Until the driver ends it."""
        exchange, idle = self.exchange, 0
        while not (totals := exchange.totals())[STOP]:
            self.beat()
            behind = self._ingest()
            if self.rank == 0 and totals[SAVE] > totals[f"saved/{self.name}"]:
                self._save(totals[SAVE])
            elif self._caught_up and self._may(totals) and self._read(totals):
                self._learn()
                idle = 0
            elif not behind:
                exchange.pause(idle)
                idle += 1
            if time.monotonic() - self._since > TELL:
                self._tell()
        self._tell()

    def _ingest(self) -> bool:
        """Put what is new into replay; whether there may be more."""
        more = False
        view = self.wanted.view or (lambda piece: piece)
        for i, cursor in enumerate(self.cursors):
            found = self.exchange.read(f"pieces/{i}", cursor, MOST)
            self.cursors[i], self.lost = found.following, self.lost + found.lost * self._caught_up
            for entry in found.data:
                chunk = view(self.wiring.pieces.unpack(entry))
                for e in range(self.wiring.plan.envs):
                    self.replay.insert(nests.mapped(lambda x, e=e: x[e], chunk))
            more |= len(found.data) + found.lost >= MOST
        self._caught_up |= not more
        return more

    def _may(self, totals: Mapping[str, int]) -> bool:
        """Whether to make the next update: the first of several processes says, the others follow."""
        if totals[GO] <= totals[f"saved/{self.name}"] or not len(self.replay):
            return False
        if self.rank:  # the stage does not end before an update that has begun: whoever began it says when
            return totals[f"next/{self.name}"] > self.updates
        steps = sum(self.cursors) * self.wiring.each
        return self.wiring.plan.pace.may_update(self.name, steps, self.updates, totals[BEGUN])

    def _read(self, totals: Mapping[str, int]) -> bool:
        """Take the newest of the others' parameters; whether they are new enough."""
        if new := self.others.look():
            params = self.state.params | self._placed(new)
            self.state = self.state._replace(params=params)
        self._lag = self.others.lag(totals)
        return self._lag <= self.wiring.plan.lag

    def _learn(self) -> None:
        with self.watch.update():
            self._learn_once()

    def _learn_once(self) -> None:
        since = time.perf_counter()
        if self.rank == 0:
            self.exchange.put(f"next/{self.name}", self.updates + 1)
        drawn = self.replay.sample()
        sample = devices.placed(drawn, self._sharding)
        self.state, metrics, priorities = self._update(self.state.params, tuple(self.state[1:]), sample)
        self.updates += 1
        if priorities is not None:
            mine = np.concatenate([np.asarray(part.data) for part in priorities.addressable_shards])
            self.replay.revise(drawn.ids, mine)
        self._made.append((metrics, self._lag))
        if self.rank == 0:
            if self.updates % self.wiring.plan.publish == 0:
                self._publish()
            self.exchange.put(f"updates/{self.name}", self.updates)
        self._busy += time.perf_counter() - since

    def _publish(self) -> None:
        owned = {group: self.state.params[group] for group in self.wiring.agent.learners[self.name].owns}
        packed = self.wiring.params[self.name].pack(jax.device_get(owned))
        self.exchange.publish(f"params/{self.name}", self.updates, packed)

    def _save(self, number: int) -> None:
        """Show the whole state, and wait for the driver."""
        self._tell()
        self._publish()
        bare = jax.device_get(random.without_keys(self.state))
        self.exchange.publish(f"state/{self.name}", self.updates, self.wiring.states[self.name].pack(bare))
        self.exchange.put(f"saved/{self.name}", number)

    def _tell(self) -> None:
        self._since = time.monotonic()
        if not self._made or self.rank:
            self._made = []
            return
        metrics = jax.device_get([one for one, _ in self._made])
        lags = [lag for _, lag in self._made]
        packing = self.wiring.learned[self.name]
        names = packing.example.metrics
        told = LearnerTold(
            {key: np.float32(np.mean([one[key] for one in metrics])) for key in names},
            np.int32(next((int(one["health"]) for one in metrics if one["health"]), 0)),
            np.float32(self._busy), np.int32(len(metrics)), np.float32(np.mean(lags)), np.int32(max(lags)),
            np.int32(self.lost),
        )  # fmt: skip
        self._made, self._busy = [], 0.0
        self.exchange.append(f"told/{self.role}", packing.pack(told))
