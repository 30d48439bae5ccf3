"""What the driver of a run asks of an architecture."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from boonta.core.agent import Agent
from boonta.core.spec import Spec
from boonta.core.types import Params, PyTree
from boonta.experiments.config import Member
from boonta.experiments.evaluation import Film, Scores


class System(Protocol):
    """An agent on an architecture. What it runs on starts with `start`; before, it has only shapes.

    Attributes:
        spec: the environment's.
        agent: the agent.
        members: of the population, M.
        iterations: of the whole run.
        steps: environment steps of one iteration, of one member, in the mean.
        updates: updates of one iteration, of one member, once there is enough to learn from.
        compile_seconds: spent on compiling so far.
        replaying: whether there is replay that outlasts an iteration.
    """

    spec: Spec
    agent: Agent
    members: list[Member]
    iterations: int
    steps: float
    updates: int
    compile_seconds: float
    replaying: bool

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

    def joined(self, rest: PyTree, fresh: PyTree, replays: dict[str, np.ndarray] | None) -> PyTree:
        """A state that goes on.

        Args:
            rest: what `rest` gave, restored.
            fresh: what `start` gave; used up.
            replays: what `replays` gave; None for those of `fresh`.

        Raises:
            ValueError, KeyError: replays of another kind; `fresh` is as it was.
        """
        ...

    def start(self, facts: dict[str, Any] | None = None) -> PyTree:
        """The state at the beginning, on its devices; `facts` are those of the checkpoint that will replace it.

        Raises:
            Refused: a setting that only now turns out to be of no use.
        """
        ...

    def advance(
        self, state: PyTree, iterations: int, asked: Callable[[], bool]
    ) -> tuple[PyTree, dict[str, np.ndarray], float]:
        """Make iterations; the state given is used up.

        Args:
            state: as it is.
            iterations: at most so many.
            asked: whether to stop early, where iterations can be made one by one.

        Returns:
            The state, the metrics [M, iterations made] (those of `core.episodes.Finished`, `health`, `policy_lag_mean`
            and `made` among them: updates, and where there were none the learners' own mean nothing), and the seconds
            that it took, compilation apart.

        Raises:
            Failed, Idle: of `experiments.systems.protocol`. After Idle the state given is as it was.
        """
        ...

    def tensors(self) -> list[str]:
        """The names that metrics["health"] - 1 points to; 0 says that all is finite."""
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


def beside(function: Callable[[], Any], name: str) -> "Future[Any]":
    """A future of what a thread makes, which does not keep a process alive that wants to end."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
