"""Split (Brooks et al., "Off-Policy Reinforcement Learning that Prioritizes Value Function Improvement for Speedup").

    environment 0 ─┐                ┌─▶ value 0, 1, ... ──critics──┐
    environment 1 ─┼──experience────┤        ▲                     │
    environment 2 ─┘                └─▶    policy ◀────────────────┘
          ▲                                  │
          └──────────── policy ──────────────┴──policy──▶ value

Processes that act and processes that learn, none of which waits for another but where a count would get too far ahead
(`split_pace`). What they pass on lies in an exchange (`split_wiring`); who they are is in `split_roles`. Here is who
starts them, looks after them, and stops the counts where the run wants to look.
"""

import math
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from boonta.architectures.learner import State
from boonta.architectures.split_wiring import BEGUN, GO, LIMIT, SAVE, STOP, ActorTold, LearnerTold, Wiring
from boonta.core import random
from boonta.core.exchange import Disconnected, Exchange
from boonta.core.faults import Exhausted, Supervisor
from boonta.core.types import Params, PyTree

LOOK = 0.02  # seconds between looks
BEGINNING = 600.0  # seconds that a process may take before its first move
STUCK = 1200.0  # seconds, and the timeout, in which some count must change while all are there
ENDING = 10.0  # seconds that processes have to end
USAGE = 2  # exit status of a process that was asked for what cannot be

Arrays = dict[str, np.ndarray]


class Failed(Exception):
    """The run cannot go on; the message says why."""


class Process(Protocol):
    """One that was started."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        ...

    def kill(self) -> None:
        """End it, whatever it is doing."""
        ...

    def wait(self, timeout: float) -> Any:
        """Until it has ended.

        Raises:
            Exception: it has not, after so many seconds.
        """
        ...


Begin = Callable[[list[str], int], Sequence[Process]]  # roles that begin together, and the life of their environments


class Told(NamedTuple):
    """What processes told in a stage, by role."""

    actors: dict[str, list[ActorTold]]
    learners: dict[str, list[LearnerTold]]


class _Post:
    """Roles that live and die together, and the processes that have them."""

    def __init__(self, roles: list[str]) -> None:
        self.roles = roles
        self.processes: Sequence[Process] = []
        self.beats: dict[str, int] = {}
        self.since: dict[str, float] = {}  # when each was last seen to move
        self.silent: set[str] = set()  # who has not moved yet: the others may have to wait for it
        self.lives = 0
        self.due = math.inf  # when those that ended are to be started anew

    def see(self, beats: dict[str, int], now: float) -> None:
        """How often each has moved so far."""
        moved = {role for role in self.roles if beats[role] != self.beats[role]}
        waited, self.silent, self.beats = bool(self.silent), self.silent - moved, beats
        if not self.silent:
            self.since |= dict.fromkeys(self.roles if waited else moved, now)


class Split:
    """The driver's side.

    Args:
        wiring: Wiring.
        exchange: Exchange.
        begin: starts processes.
        supervisor: of processes that are replaced; what it is told is for the user.
        timeout: seconds after which a process that does not move is replaced.
        life: of the environments, at first.
    """

    def __init__(
        self, wiring: Wiring, exchange: Exchange, begin: Begin, supervisor: Supervisor, timeout: float, life: int = 0
    ) -> None:
        self.wiring, self.exchange, self.timeout, self.life = wiring, exchange, timeout, life
        self._begin, self._supervisor = begin, supervisor
        plan = wiring.plan
        self._posts = [_Post([role]) for role in plan.roles() if role.startswith("environment/")]
        self._posts += [_Post([f"{name}/{i}" for i in range(n)]) for name, n in plan.members.items()]
        self._read = dict.fromkeys(plan.roles(), 0)
        self._stage = 0

    def restore(self, states: dict[str, State], arrays: Arrays | None, made: int) -> None:
        """Go on from these; before `start`.

        Args:
            states: the learners', keys as bare numbers.
            arrays: what `arrays` gave; None for no experience.
            made: pieces that each process of environments had made.
        """
        wiring, exchange = self.wiring, self.exchange
        for name, state in states.items():
            updates, bare = int(state.updates), jax.device_get(random.without_keys(state))
            exchange.publish(f"state/{name}", updates, wiring.states[name].pack(bare))
            owned = {group: bare.params[group] for group in wiring.agent.learners[name].owns}
            exchange.publish(f"params/{name}", updates, wiring.params[name].pack(owned))
            exchange.put(f"updates/{name}", updates)
        for i in range(wiring.plan.workers):
            nothing = np.zeros((0, wiring.pieces.nbytes), np.uint8)
            begin, data = (int(arrays[f"begin/{i}"]), arrays[f"pieces/{i}"]) if arrays else (made, nothing)
            exchange.restore(f"pieces/{i}", begin, data)
        exchange.hand_over()
        # Experience begins late where a run without any went on: the minimum is counted from there.
        begun = max(int(arrays[f"begin/{i}"]) for i in range(wiring.plan.workers)) if arrays else made
        exchange.put(BEGUN, begun * wiring.quota)  # which stays the driver's

    def start(self, asked: Callable[[], bool]) -> bool:
        """Set the processes going, and wait until all are there; false if it is asked to end before.

        Raises:
            Failed: processes died too often.
        """
        before = self.exchange.totals()
        for post in self._posts:
            self._start(post)
        beats = [f"beat/{role}" for post in self._posts for role in post.roles]
        while not asked():
            self.look_after()
            totals = self.exchange.totals()
            if all(totals[beat] != before[beat] for beat in beats):
                return True
            time.sleep(LOOK)
        return False

    def steps(self) -> int:
        """Environment steps made so far."""
        return self.wiring.steps(self.exchange)

    def stage(self, steps: int, asked: Callable[[], bool]) -> Told:
        """Let all go on until there are so many environment steps in all, and the updates that go with them.

        Asked to end, they stop at the next number of steps that all environments have made alike.

        Raises:
            Failed: processes died too often.
        """
        exchange, told, quota = self.exchange, Told({}, {}), self.wiring.quota
        self._stage += 1
        exchange.put(LIMIT, steps)
        exchange.put(GO, self._stage)
        ending, counts, since = False, [0], time.monotonic()
        while not self._settled(steps):
            self.look_after()
            self._hear(told)
            most = max(self.wiring.lengths(exchange)) * quota
            if not ending and (ending := asked()):
                steps = min(steps, most + quota)  # which all can still stop at
                exchange.put(LIMIT, steps)
            elif most > steps:  # who had not heard of it went on
                exchange.put(LIMIT, steps := most)
            before, counts, now = counts, self._counts(), time.monotonic()
            if counts != before or any(post.silent for post in self._posts):
                since = now
            if now - since > STUCK + self.timeout:
                raise Failed(f"no environment stepped and no learner made an update in {now - since:.0f} s")
            time.sleep(LOOK)
        exchange.put(SAVE, self._stage)
        while not self._saved():
            self.look_after()
            time.sleep(LOOK)
        self._hear(told)
        return told

    def states(self) -> dict[str, State]:
        """What the learners are, at the end of a stage; keys as bare numbers."""
        found = {}
        for name, packing in self.wiring.states.items():
            there = self.exchange.newest(f"state/{name}", -1)
            assert there is not None
            found[name] = packing.unpack(there[1])
        return found

    def arrays(self) -> Arrays:
        """What is in the logs of experience, at the end of a stage."""
        found = {}
        for i in range(self.wiring.plan.workers):
            length = self.exchange.length(f"pieces/{i}")
            kept = self.wiring.layout.logs[f"pieces/{i}"][1]
            entries = self.exchange.read(f"pieces/{i}", max(length - kept, 0), kept)
            found |= {f"pieces/{i}": entries.data, f"begin/{i}": np.asarray(entries.following - len(entries.data))}
        return found

    def close(self) -> None:
        """End all processes."""
        with suppress(Disconnected):  # then they end by themselves, or are ended here
            self.exchange.put(STOP, 1)
        until = time.monotonic() + ENDING
        left = [process for post in self._posts for process in post.processes]
        while (left := [process for process in left if _runs(process)]) and time.monotonic() < until:
            time.sleep(LOOK)
        for process in left:
            with suppress(Disconnected, subprocess.TimeoutExpired):  # one that cannot be ended is left behind
                process.kill()
                process.wait(ENDING)

    def _settled(self, steps: int) -> bool:
        """Whether all have come as far as they may."""
        wiring, totals = self.wiring, self.exchange.totals()
        heard = all(totals[f"heard/{i}"] == totals[LIMIT] == steps for i in range(wiring.plan.workers))
        if not heard or any(length * wiring.quota != steps for length in wiring.lengths(self.exchange)):
            return False
        pace = wiring.plan.pace
        return pace.free or not any(
            pace.may_update(name, steps, totals[f"updates/{name}"], totals[BEGUN]) for name in wiring.agent.learners
        )

    def _saved(self) -> bool:
        totals = self.exchange.totals()
        return all(totals[f"saved/{name}"] == self._stage for name in self.wiring.agent.learners)

    def _counts(self) -> list[int]:
        """What changes while anything goes on."""
        totals = self.exchange.totals()
        return [
            *self.wiring.lengths(self.exchange),
            *(totals[f"updates/{name}"] for name in self.wiring.agent.learners),
        ]

    def _start(self, post: _Post) -> None:
        totals = self.exchange.totals()
        post.beats, post.silent = {role: totals[f"beat/{role}"] for role in post.roles}, set(post.roles)
        post.since = dict.fromkeys(post.roles, time.monotonic() + BEGINNING)
        post.processes, post.due = self._begin(post.roles, self.life + post.lives), math.inf
        post.lives += 1

    def look_after(self) -> None:
        """Replace who died, or does not move."""
        totals, now = self.exchange.totals(), time.monotonic()
        for post in self._posts:
            if not post.processes:
                if now >= post.due:
                    self._start(post)
                continue
            codes = [process.poll() for process in post.processes]
            dead = [(role, code) for role, code in zip(post.roles, codes, strict=True) if code is not None]
            post.see({role: totals[f"beat/{role}"] for role in post.roles}, now)
            still = [role for role in post.roles if now - post.since[role] > self.timeout]
            if not dead and not still:
                continue
            why = f"exit status {dead[0][1]}" if dead else f"no move in {self.timeout:g} s"
            who = dead[0][0] if dead else still[0]
            if dead and all(code == USAGE for _, code in dead):
                raise Failed(f"{who} died ({why}), which another could not do better")
            try:
                restart = self._supervisor.incident(f"{who} died", why)
            except Exhausted as error:
                raise Failed(str(error)) from error
            self._supervisor.tell(
                f"{who} died ({why}) and is replaced ({restart.count} of {self._supervisor.per_hour} within an hour)"
            )
            for process in post.processes:
                self._end(process)
            post.processes, post.silent, post.due = [], set(post.roles), now + restart.delay

    def _end(self, process: Process) -> None:
        """End a process that is of no use any more."""
        if process.poll() is None:
            process.kill()
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"a process that was killed has not ended in {ENDING:g} s") from error

    def _hear(self, told: Told) -> None:
        for role, begin in self._read.items():
            entries = self.exchange.read(f"told/{role}", begin, 1 << 20)
            self._read[role] = entries.following
            kind: dict[str, list[Any]] = told.actors if role.startswith("environment/") else told.learners  # type: ignore[assignment]
            for data in entries.data:
                kind.setdefault(role, []).append(self.wiring.told(role, data))


def _runs(process: Process) -> bool:
    """Whether it is seen to run; who is elsewhere is not, once there is no exchange to see it in."""
    with suppress(Disconnected):
        return process.poll() is None
    return False


def params(states: dict[str, State], agent: Any) -> Params:
    """All groups, each from who owns it; of those that nobody owns, any."""
    first = next(iter(states.values()))
    whole: PyTree = dict(first.params)
    for name, state in states.items():
        whole |= {group: state.params[group] for group in agent.learners[name].owns}
    return whole
