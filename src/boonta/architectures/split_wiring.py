"""How everything of a split run lies in the exchange: who there is, and what each writes for the others to read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from boonta.architectures import sebulba
from boonta.architectures.learner import metric_names, sample_like, sampled
from boonta.architectures.split_pace import Pace
from boonta.architectures.turns import together
from boonta.core import random
from boonta.core.agent import Agent
from boonta.core.episodes import Finished
from boonta.core.exchange import Exchange, Layout
from boonta.core.host import Workers
from boonta.core.packing import Packing
from boonta.core.spec import Spec
from boonta.core.types import Trajectory
from boonta.replay.windows import windows

TOLD = 1024  # entries that are kept of what a process tells
MOST = 256  # entries of experience that are read at a time
# The driver's totals: environment steps to stop at, and those before which there is no experience; stages begun, and
# ended; the end.
LIMIT, BEGUN, GO, SAVE, STOP = "limit", "begun", "go", "save", "stop"


class Plan(NamedTuple):
    """Who there is.

    Attributes:
        workers: processes that act.
        envs: environments of each, E.
        members: processes of each learner, by name; those of one share its batch.
        pace: Pace.
        capacity: windows that replay keeps.
        publish: updates between published parameters.
        lag: most updates that parameters may be behind where they are used.
        seed: of the run.
        overrides: settings in place of the agent's, of the parameter group `settings`.
        finite: whether an observation or reward that is not finite is a fault.
        simulators: what steps environments.
    """

    workers: int
    envs: int
    members: dict[str, int]
    pace: Pace
    capacity: int
    publish: int = 1
    lag: int = 100
    seed: int = 0
    overrides: Mapping[str, float] = {}
    finite: bool = False
    simulators: Workers = Workers()

    def roles(self) -> list[str]:
        """What processes are called: `environment/0`, `value/0`."""
        acting = [f"environment/{i}" for i in range(self.workers)]
        return acting + [f"{name}/{i}" for name, count in self.members.items() for i in range(count)]


class ActorTold(NamedTuple):
    """About what a process acted: episodes that finished, health, seconds busy, pieces, and lag in policy updates."""

    finished: Finished
    bad: Any
    seconds: Any
    pieces: Any
    lag: Any
    lag_max: Any


class LearnerTold(NamedTuple):
    """About updates: means of metrics, health, seconds busy, how many, lag of what was read, experience lost."""

    metrics: dict[str, Any]
    bad: Any
    seconds: Any
    made: Any
    lag: Any
    lag_max: Any
    lost: Any


class Wiring:
    """How everything lies in the exchange, for all who take part alike.

    Args:
        agent: the agent, its learners apart.
        spec: the environment's.
        plan: Plan.
        about: in what all who take part must be alike, besides shapes.
    """

    def __init__(self, agent: Agent, spec: Spec, plan: Plan, about: str = "") -> None:
        self.agent, self.spec, self.plan = agent, spec, plan
        self.actor = sebulba.acts(together(agent), spec)
        params = jax.eval_shape(agent.init, random.key(0))
        self.piece = self.actor.piece(params)
        batch = jax.tree.map(lambda s: jax.ShapeDtypeStruct((plan.envs, *s.shape), s.dtype), self.piece)
        self.pieces = Packing(batch)
        number, count = np.zeros((), np.float32), np.zeros((), np.int32)
        none: Any = Finished(*[number] * 4)  # type: ignore[arg-type]
        self.acted = Packing(ActorTold(none, count, number, count, number, count))
        self.metrics: dict[str, list[str]] = {}  # of each learner, those that health may point to
        self.params: dict[str, Packing] = {}
        self.states: dict[str, Packing] = {}
        self.learned: dict[str, Packing] = {}
        entries = {}
        for name, learner in agent.learners.items():
            if learner.insert is not None or learner.experience.reanalyse:
                raise ValueError(
                    f"split has no first priorities and does not reanalyse, as {name} asks; use --on fleet"
                )
            half, sizes = sampled(self.alone(name), 0, spec.stack), windows(learner.experience)
            state = jax.eval_shape(lambda half=half: half.init(random.key(0), dict(plan.overrides)))
            sample = sample_like(self.viewed(name), learner.experience, learner.experience.batch, spec.stack)
            metrics = jax.eval_shape(half.update, state, sample)[1]
            self.params[name] = Packing({group: params[group] for group in learner.owns})
            self.states[name] = Packing(jax.eval_shape(random.without_keys, state))
            self.metrics[name] = metric_names(metrics)
            own = {key: number for key in metrics if key not in ("health", "made") and "policy_lag" not in key}
            self.learned[name] = Packing(LearnerTold(own, count, number, count, number, count, count))
            entries[name] = -(-plan.capacity // (plan.workers * plan.envs * sizes.each)) + sizes.pieces + MOST
        logs = {f"pieces/{i}": (self.pieces.nbytes, max(entries.values())) for i in range(plan.workers)}
        roles = plan.roles()
        logs |= {f"told/{role}": (self._told(role).nbytes, TOLD) for role in roles}
        values = {f"params/{name}": packing.nbytes for name, packing in self.params.items()}
        values |= {f"state/{name}": packing.nbytes for name, packing in self.states.items()}
        totals = [LIMIT, BEGUN, GO, SAVE, STOP, *(f"beat/{role}" for role in roles)]
        totals += [f"heard/{i}" for i in range(plan.workers)]  # the limit that a process of environments keeps to
        totals += [f"{what}/{name}" for name in agent.learners for what in ("updates", "saved", "next")]
        schemas = [self.pieces.schema, *(packing.schema for packing in self.states.values())]
        self.layout = Layout(logs, values, tuple(totals), " ".join([about, *schemas]))

    def alone(self, name: str) -> Agent:
        """The agent with this learner alone."""
        return self.agent._replace(learners={name: self.agent.learners[name]})

    def viewed(self, name: str) -> Trajectory:
        """The shapes of what of a piece this learner keeps."""
        view = self.agent.learners[name].experience.view
        return self.piece if view is None else view(self.piece)

    def steps(self, exchange: Exchange) -> int:
        """Environment steps made so far."""
        return sum(self.lengths(exchange)) * self.each

    def lengths(self, exchange: Exchange) -> list[int]:
        """Entries that each process of environments has made."""
        return [exchange.length(f"pieces/{i}") for i in range(self.plan.workers)]

    @property
    def quota(self) -> int:
        """Environment steps of an entry of each process of environments."""
        return self.plan.workers * self.each

    @property
    def each(self) -> int:
        """Environment steps of an entry."""
        return self.plan.envs * self.actor.unroll

    def _told(self, role: str) -> Packing:
        kind = role.split("/")[0]
        return self.acted if kind == "environment" else self.learned[kind]

    def told(self, role: str, data: np.ndarray) -> Any:
        """What a process told, from its bytes."""
        return self._told(role).unpack(data)
