"""The fleet (MooZi, chapter 5): members that only answer calls, and a driver that says what is done and when.

    training workers  ──pieces──▶  replay buffer  ──samples──▶  parameter server
           ▲                        │        ▲                        │
           │                      pieces   new targets                │
           │                        ▼        │                        │
           └──────────────── reanalyse workers ◀─────parameters───────┘      testing worker: every so many updates

What travels is never in the driver's hands: it passes references on. Nobody waits for anybody: what a call needs is
there before it is made, and a worker is asked for nothing before it has answered.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from boonta.architectures.fleet_plan import Plan
from boonta.architectures.fleet_roles import (
    Make,
    Memory,
    ParameterServer,
    Parts,
    Reanalysis,
    Rollout,
    Testing,
    Told,
)  # fmt: skip
from boonta.architectures.fleet_staff import Failed, Post, Staff
from boonta.architectures.learner import State
from boonta.core.crew import Crew, Gone, Raised, Ref, Resources

LIMIT = 1500.0  # seconds that greedy episodes may take, before who plays them is taken to hang; others may play then


class Asked(Exception):
    """The run is to end, and nothing has been learned yet."""


class Fleet:
    """The driver's side.

    Args:
        crew: Crew.
        make: role -> Parts, in each member's own process.
        plan: Plan.
        seed: of the run.
        state: the parameter server's at first, with the bare numbers of keys.
        life: of the environments, at first.
    """

    def __init__(
        self, crew: Crew, make: Callable[[str], Parts], plan: Plan, seed: int, state: State, life: int = 0
    ) -> None:
        self.plan, self.staff = plan, Staff(crew, plan.restarts, plan.timeout)
        self.inserted = self.sampled = self.windows = 0  # windows, so far; those that replay holds
        self.renewed = 0.0  # share of the replay that was acted on again
        self.learning = self.acting = 0.0  # seconds that the parameter server and the training workers spent
        self.asked: Callable[[], bool] = lambda: False
        self._params: tuple[Ref, int] | None = None  # the latest that are there, and the updates behind them
        self._taught_by = 0  # calls of the server to learn that are behind these
        self._acting: dict[Post, int] = {}  # the same of what each busy worker acts with
        self._out = 0  # windows that workers are making, or that are on their way into replay
        self._due = 0.0  # pieces to act on again
        self._drawn = 0  # samples on their way
        self._ready: deque[Ref] = deque()  # samples, or trajectories not learned from
        self._updating = self._updates = 0  # updates under way, and made
        self._learned: deque[dict[str, Any]] = deque()
        self._episodes: list[Told] = []
        self._state, self._version = state, int(state.updates)

        def hired(role: str, name: str, what: Callable[..., Any], *args: Any) -> Post:
            needs, parts = plan.resources.get(role, Resources()), partial(make, role)
            return self.staff.hire(name, partial(what, parts, *args), needs, life)

        chunk = 0 if plan.batch else plan.workers * plan.envs
        self._server = hired("server", "parameter server", _server, chunk, plan.batch, plan.devices)
        self._memory = hired("replay", "replay buffer", _memory, plan, seed) if plan.batch else None
        self._workers = [
            hired("training", f"training worker {i}", _rollout, plan, seed, i) for i in range(plan.workers)
        ]
        self._reanalysers = [
            hired("reanalyse", f"reanalyse worker {i}", _reanalysis, seed + i) for i in range(plan.reanalysers)
        ]
        self._tester = hired("testing", "testing worker", _testing)
        self.names: list[str] = []  # of metrics that `health` may point to

    def begin(self, replay: dict[str, np.ndarray]) -> None:
        """Wait until all members are there, and give them what they begin with.

        Args:
            replay: what `arrays` gave, if there is a replay to go on with.

        Raises:
            Failed: a member could not begin.
            Asked: the run is to end.
        """
        if not self.staff.begin(self.asked):
            raise Asked
        self.names = self._server.said
        self._server.replaced = self._go_on_from_last_state
        if self._memory:
            self._memory.replaced = self._fill_anew
            self._fill(replay)
        self.staff.have(self._server, "restore", self._state)
        self._publish()

    def iterate(self, left: int) -> tuple[dict[str, Any], list[Told]]:
        """All that has to happen for one more update: its metrics, and what is told of experience that came meanwhile.

        Args:
            left: updates that may be made, this one included; more are not begun. 0 for those alone that are under way.

        Raises:
            Failed: too many members had to be replaced, or one raised.
            Asked: the run is to end.
        """
        while not self._learned:
            if self.asked() and not self._updating:
                raise Asked
            self._send_out()
            self._draw()
            self._teach(left)
            self._look_again()
            self.staff.receive()
        told, self._episodes = self._episodes, []
        return self._learned.popleft(), told

    def under_way(self) -> bool:
        """Whether updates were begun that `iterate` has not given yet."""
        return bool(self._updating or self._learned)

    def state(self) -> State:
        """The parameter server's, with the bare numbers of keys, when no update is under way."""
        self._state = self.staff.have(self._server, "state")
        self._version = int(self._state.updates)
        return self._state

    def arrays(self) -> dict[str, np.ndarray]:
        """The replay, and what was counted around it: of the samples, those that were learned from."""
        if not self._memory:
            return {}
        arrays = self.staff.have(self._memory, "arrays")
        learned = self.sampled - self.plan.batch * (self._drawn + len(self._ready))
        return arrays | {"counts": np.array([arrays["counts"][0], learned])}

    def examine(self, params: Any, episodes: int) -> "Future[Any]":
        """Let the testing worker play greedy episodes; `staff.receive` brings the scores, or Gone."""
        scores: Future[Any] = Future()
        gone = partial(scores.set_exception, Gone("there is no testing worker"))
        if self._tester.ready:
            put = self.staff.crew.put(params)
            self.staff.ask(self._tester, "play", put, episodes, then=scores.set_result, undo=gone, patience=LIMIT)
        else:
            gone()
        return scores

    def told(self) -> list[str]:
        """What has happened since the last call and must be told."""
        told, self.staff.notices = self.staff.notices, []
        return told

    def _fill(self, replay: dict[str, np.ndarray]) -> None:
        """Put back what was in replay, if it fits."""
        assert self._memory
        try:
            if replay:
                self.inserted, self.sampled, self.windows = self.staff.have(self._memory, "restore", replay)
        except Failed as error:
            if not isinstance(error.__cause__, Raised):
                raise
            why = error.__cause__.why
            self.staff.notices.append(f"replay begins empty: what was kept does not fit ({why})")

    def _fill_anew(self) -> None:
        """The replay buffer was lost."""
        again = "it is filled to its minimum anew, by steps that are not counted" if self.inserted else "it is empty"
        self.staff.notices.append(f"what was in replay is lost; {again}")
        self.inserted = self.sampled = self.windows = 0
        self._due = 0.0
        self._ready.clear()

    def _go_on_from_last_state(self) -> None:
        """The parameter server was lost; versions go on from where they were, so that none is newer than its own."""
        lost = self._version - int(self._state.updates)
        self.staff.notices.append(f"{lost} updates are lost: it goes on from the state that the driver had last")
        self._params = None  # they may be lost with it
        updates = np.asarray(self._version, self._state.updates.dtype)
        self.staff.ask(self._server, "restore", self._state._replace(updates=updates))
        self._publish()

    # The verbs

    def _send_out(self) -> None:
        """Workers that are idle make pieces, unless those would be too far ahead of learning."""
        for post in self._workers:
            if self._params and self._server.ready and post.ready and not post.busy and self._may_insert():
                post.busy = True
                self._acting[post] = self._taught_by
                self._out += self.plan.pieces()
                came, lost = partial(self._came, post), partial(self._lost, post)
                self.staff.ask(post, "run", *self._params, then=came, undo=lost, heavy=True)

    def _came(self, post: Post, trajectory: Ref, told: Told) -> None:
        post.busy = False
        del self._acting[post]
        self._episodes.append(told)
        self.acting += told.seconds
        if self._memory is None:
            self._ready.append(trajectory)
        elif self._memory.ready and self._params:
            self.staff.ask(self._memory, "insert", trajectory, self._params[0], then=self._entered, undo=self._lost)
        else:
            self._lost()

    def _entered(self, windows: tuple[int, int]) -> None:
        new, self.windows = windows
        self._out -= self.plan.pieces()
        self.inserted += new
        if self.inserted >= self.plan.minimum:
            self._due += self.plan.envs * self.plan.reanalyse

    def _lost(self, post: Post | None = None) -> None:
        self._out -= self.plan.pieces()
        if post:
            post.busy = False
            del self._acting[post]

    def _draw(self) -> None:
        """Samples are drawn before they are needed."""
        memory = self._memory
        while memory and memory.ready and self._drawn + len(self._ready) < self.plan.ahead and self._may_sample():
            self.sampled += self.plan.batch
            self._drawn += 1
            self.staff.ask(memory, "sample", then=self._at_hand, undo=self._not_drawn, heavy=True)

    def _at_hand(self, sample: Ref, _: Any) -> None:
        self._drawn -= 1
        self._ready.append(sample)

    def _not_drawn(self) -> None:
        self._drawn -= 1
        self.sampled -= self.plan.batch

    def _teach(self, left: int) -> None:
        """The parameter server makes updates, as many as there is experience for."""
        server, memory = self._server, self._memory
        needed = 1 if memory else self.plan.workers * self.plan.rounds
        most = min(self.plan.ahead, left)
        while server.ready and len(self._ready) >= needed and self._updating + len(self._learned) < most:
            if not memory and self._would_leave_behind():
                return
            taken = [self._ready.popleft() for _ in range(needed)]
            self._updating += 1
            if memory:
                taught, undo = partial(self._revise, memory.life), partial(self._not_taught, memory.life)
                self.staff.ask(server, "learn", *taken, then=taught, undo=undo, heavy=True)
            else:
                self._out -= needed * self.plan.pieces()
                self.staff.ask(server, "learn_once", *taken, then=self._taught, undo=self._not_taught)

    def _revise(self, life: int, priorities: Ref, metrics: dict[str, Any]) -> None:
        self._taught(metrics)
        if self._memory and self._memory.ready and self._memory.life == life:  # else what was drawn is there no more
            self.staff.ask(self._memory, "revise", priorities)

    def _taught(self, metrics: dict[str, Any]) -> None:
        self._updating -= 1
        self._updates += 1
        self.learning += metrics.pop("seconds")
        self._version = metrics.pop("version")
        self._learned.append(metrics)
        if self._updates % self.plan.publish == 0:
            self._publish()

    def _not_taught(self, life: int | None = None) -> None:
        self._updating -= 1
        if self._memory and self._memory.life == life:  # another sample takes its place
            self.sampled -= self.plan.batch

    def _publish(self) -> None:
        """A copy of the parameters, for all who act from when it is there."""
        published = partial(self._published, self._updates + self._updating)
        self.staff.ask(self._server, "params", then=published, heavy=True)

    def _published(self, taught_by: int, params: Ref, version: int) -> None:
        self._params, self._taught_by = (params, version), taught_by

    def _look_again(self) -> None:
        """Reanalyse workers that are idle act again on what is stored."""
        memory = self._memory
        for post in self._reanalysers:
            idle = self._server.ready and post.ready and not post.busy
            there = memory and memory.ready and self.inserted >= self.plan.minimum
            if memory and there and idle and self._due >= self.plan.envs:
                self._due -= self.plan.envs
                post.busy = True
                undo = partial(self._not_looked, post, memory.life)
                recalled = partial(self._recalled, post, memory.life)
                self.staff.ask(memory, "past", self.plan.envs, then=recalled, undo=undo, heavy=True)

    def _recalled(self, post: Post, life: int, past: Ref, _: Any) -> None:
        if not self._params:
            return self._not_looked(post, life)
        looked, undo = partial(self._looked, post, life, *self._params), partial(self._not_looked, post, life)
        self.staff.ask(post, "again", self._params[0], past, then=looked, undo=undo, heavy=True)

    def _looked(self, post: Post, life: int, params: Ref, version: int, again: Ref, _: Any) -> None:
        post.busy = False
        if self._memory and self._memory.ready and self._memory.life == life:
            self.staff.ask(self._memory, "renew", again, version, params, then=partial(setattr, self, "renewed"))

    def _not_looked(self, post: Post, life: int) -> None:
        post.busy = False
        if self._memory and self._memory.life == life:  # a new replay has nothing to act on again yet
            self._due += self.plan.envs

    # How far ahead

    def _may_insert(self) -> bool:
        plan, more = self.plan, self.plan.pieces()
        if not plan.batch:
            return self._out + more <= (1 + plan.ahead) * plan.rounds * plan.workers * more
        if self._due > plan.envs * (plan.reanalyse + plan.reanalysers * plan.ahead):
            return False  # those who look again would never catch up
        there = self.inserted + self._out
        slack = plan.ahead * plan.batch + 2 * plan.workers * more * plan.ratio
        return there < plan.minimum or (there + more - plan.minimum) * plan.ratio - self.sampled <= slack

    def _would_leave_behind(self) -> bool:
        """Whether, one update more, what some worker is making would be too old when its turn comes."""
        after = self._updates + self._updating + 1
        return any(after - taught_by > self.plan.ahead + self.plan.publish for taught_by in self._acting.values())

    def _may_sample(self) -> bool:
        enough = self.windows > 0 and self.inserted >= self.plan.minimum
        return enough and self.sampled <= (self.inserted - self.plan.minimum) * self.plan.ratio


def _server(make: Make, chunk: int, batch: int, devices: int, life: int) -> ParameterServer:
    del life
    return ParameterServer(make, chunk, batch, devices)


def _memory(make: Make, plan: Plan, seed: int, life: int) -> Memory:
    return Memory(make, plan.batch, plan.capacity, plan.compress, (seed, life))


def _rollout(make: Make, plan: Plan, seed: int, place: int, life: int) -> Rollout:
    everyone = plan.workers * plan.envs
    return Rollout(make, place * plan.envs, plan.envs, everyone, life, seed, plan.simulators, plan.finite)


def _reanalysis(make: Make, seed: int, life: int) -> Reanalysis:
    return Reanalysis(make, (seed, life))


def _testing(make: Make, life: int) -> Testing:
    del life
    return Testing(make)
