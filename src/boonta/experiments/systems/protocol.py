"""What the driver of a run asks of an architecture."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from boonta.core.agent import Agent
from boonta.core.settings import Refused
from boonta.core.spec import UNBOUNDED, Continuous, Spec
from boonta.core.totals import Totals
from boonta.core.types import Key, Params, PyTree
from boonta.core.watch import Watch
from boonta.experiments import record as records
from boonta.experiments.config import Config, Member
from boonta.experiments.evaluation import Film, Scores
from boonta.experiments.registry import AGENTS
from boonta.nets.inputs import Inputs, inputs

ENDING = 1.0  # seconds that the end of a thread is waited for
READING = 1  # of run.json: how observations are read; raised when that changes


class System(Protocol):
    """An agent on an architecture. What it runs on starts with `start`; before, it has only shapes.

    Attributes:
        spec: the environment's.
        agent: the agent.
        members: of the population, M.
        iterations: of the whole run.
        steps: environment steps of one iteration, of one member, in the mean.
        environments: of one member, over all processes.
        updates: updates of one iteration, of one member, once there is enough to learn from.
        compile_seconds: spent on compiling so far.
        replaying: whether there is replay that outlasts an iteration.
        remarks: what a user should know of the environment before it runs.
        given: parameters to begin with in place of the agent's own, None for those that stay; set before `start`.
        watch: since when an update is being made here.
        progress: takes how an evaluation gets on; whoever wants to know sets it.
    """

    spec: Spec
    agent: Agent
    members: list[Member]
    iterations: int
    steps: float
    environments: int
    updates: int
    compile_seconds: float
    replaying: bool
    remarks: list[str]
    given: Params | None
    watch: Watch
    progress: Callable[[str], None]

    def at(self, iterations: int) -> int:
        """Environment steps behind so many iterations, of one member."""
        ...

    def shapes(self) -> PyTree:
        """The state's without its replays, on one device: what a checkpoint is restored to outside a run."""
        ...

    def rest(self, state: PyTree) -> PyTree:
        """The state without its replays."""
        ...

    def replays(self, state: PyTree) -> AbstractContextManager[dict[str, np.ndarray]]:
        """What this host has in replay; nothing where learning is on-policy."""
        ...

    def joined(
        self, rest: PyTree, fresh: PyTree, replays: dict[str, np.ndarray] | None, facts: dict[str, Any]
    ) -> PyTree:
        """A state that goes on.

        Args:
            rest: what `rest` gave, restored.
            fresh: what `start` gave; used up.
            replays: what `replays` gave; None for those of `fresh`.
            facts: what `facts` gave.

        Raises:
            ValueError, KeyError: replays of another kind; `fresh` is as it was.
        """
        ...

    def start(self) -> PyTree:
        """The state at the beginning, on its devices.

        Raises:
            Refused: a setting that only now turns out to be of no use.
        """
        ...

    def advance(
        self, state: PyTree, iterations: int, asked: Callable[[], bool], so_far: Totals | None = None
    ) -> tuple[PyTree, Totals, float]:
        """Make iterations; the state given is used up.

        Args:
            state: as it is.
            iterations: at most so many.
            asked: whether to stop early, where iterations can be made one by one.
            so_far: Totals [M] of iterations before, to which these are added.

        Returns:
            The state, what the iterations came to with those of before, Totals [M], and the seconds that it took,
            compilation apart.

        Raises:
            Failed, Idle: of `experiments.systems.protocol`. After Idle the state given is as it was.
        """
        ...

    def tensors(self) -> list[str]:
        """The names that `Totals.bad` - 1 points to; 0 says that all is finite."""
        ...

    def evaluate(self, state: PyTree, episodes: int) -> "Future[Scores]":
        """Greedy episodes of every member, [M, episodes]; beside training where that can be."""
        ...

    def play(self, params: Params, episodes: int) -> Scores:
        """Greedy episodes of one member's parameters, [episodes]."""
        ...

    def film(self, params: Params, seed: int, steps: int) -> Film:
        """One greedy episode of at most so many steps.

        Raises:
            ValueError: the environment cannot be drawn.
        """
        ...

    def params(self, state: PyTree, member: int) -> Params:
        """One member's parameters."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a checkpoint has to know besides the state."""
        ...

    def notices(self) -> list[str]:
        """What has happened since the last call and must be told."""
        ...

    def check(self) -> None:
        """Look after what runs beside.

        Raises:
            Failed: it died.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """The devices and who does what there, for `run.json`."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class Failed(Exception):
    """The run ended for a reason that the message tells; the exit code is 1."""


class Idle(Exception):
    """It was asked to stop while there was nothing to learn from, and has made no iteration."""


def unheard(text: str) -> None:
    """Where nobody wants to know of progress."""


def said_of(config: Config, spec: Spec) -> list[str]:
    """What a user should know of how an agent of ours reads an environment, and of how far it reaches in it."""
    told = []
    if config.agent in AGENTS:
        told = [f"{spec.name}: {remark}" for remark in reading(config, spec).remarks()]
    action = spec.action
    if isinstance(action, Continuous) and not action.bounded().all():
        low, high = action.reach()
        free = ~action.bounded()
        told.append(
            f"{spec.name}: {free.sum()} of {free.size} numbers of an action have no bounds; agents reach from "
            f"{low[free].min():g} to {high[free].max():g}, and env.action_span={10 * action.span:g} widens it"
        )
    return told


def reading(config: Config, spec: Spec) -> Inputs:
    """How an agent of ours reads an environment's observations."""
    return inputs(spec, flat=getattr(config.agent_settings, "body", "auto") == "mlp")


def check_reading(folder: Path, config: Config, system: System) -> None:
    """Refuse a run folder whose networks were trained on observations that are read otherwise by now, or on actions.

    Raises:
        Refused: it is such a one.
    """
    if config.agent not in AGENTS or records.read(folder).get("reading", 0) >= READING:
        return
    spec, seen = system.spec, system.spec.observation
    one_bound = isinstance(spec.action, Continuous) and (
        (np.abs(spec.action.low) < UNBOUNDED) != (np.abs(spec.action.high) < UNBOUNDED)
    )
    shown = spec.model is None and isinstance(seen, dict) and "state" in seen
    masked = any("action_mask" in remark for remark in system.remarks)
    if not reading(config, spec).plain() or np.any(one_bound) or shown or masked:
        raise Refused(
            f"{folder} was trained by a version of Boonta that read the observations of {config.env} otherwise, or its "
            "actions (categories as numbers, uint8 over 255, other axes, all in one vector, the keys state and "
            "action_mask, boxes with one bound); go on with that version, which run.json names, or start a new run"
        )


def beginning_with(agent: Agent, given: Callable[[], Params | None]) -> Agent:
    """The agent, whose first parameters are replaced by what is given when it begins, but for what is None there."""

    def init(key: Key) -> Params:
        own, new = agent.init(key), given()
        if new is None:
            return own
        return jax.tree.map(lambda x, mine: mine if x is None else x, new, own, is_leaf=lambda x: x is None)

    return agent._replace(init=init)


def replaying(agent: Agent) -> bool:
    """Whether a learner of this agent has replay that outlasts an iteration."""
    return any(learner.experience.capacity for learner in agent.learners.values())


def fitting(agent: Agent) -> int:
    """Environments where none are asked for: as many as the agent's batch, but with replay not too many for a host."""
    batch = max(learner.experience.batch for learner in agent.learners.values())
    return min(batch, 64) if replaying(agent) else batch


def done(value: Any) -> "Future[Any]":
    """A future that is there already."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Aside:
    """A thread that does one thing after another; it does not keep a process alive that wants to end.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, function: Callable[[], Any]) -> "Future[Any]":
        """A future of what the thread makes."""
        future: Future[Any] = Future()
        self._asked.put((function, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def end(self) -> None:
        """Let it end, once it has done what it was asked."""
        self._asked.put(None)
        if self._thread:
            self._thread.join(ENDING)
        self._thread = None

    def _work(self) -> None:
        while asked := self._asked.get():
            function, future = asked
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            del asked, function, future  # what they hold is not kept until the next
