"""AlphaZero (Silver et al. 2018), by default with Gumbel's search: MuZero's page where the model is the environment.

Its state is part of the observation (`env.model`), and every step of a search is a true one.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.agents.common import CLIPPED
from boonta.agents.planning import PlannerSettings, State, cross_entropy, descend, frames, fresh, masked, over_roots
from boonta.core.agent import Agent, Learner
from boonta.core.settings import setting, traced
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Array, Extras, Feedback, Key, Params, PyTree, Sample, TimeStep, Trajectory
from boonta.nets.inputs import legal
from boonta.nets.planner import judge
from boonta.ops.search import Found, Node, search
from boonta.ops.two_hot import clipped, expected, two_hot

ENV = {"model": True}


@dataclass(frozen=True)
class Settings(PlannerSettings):
    """AlphaZero's settings."""

    layers: tuple[int, ...] = setting((2,), "mlp: layers", low=0)
    blocks: tuple[int, ...] = setting((6,), "resnet: blocks", low=0)


class Remembered(NamedTuple):
    """What an environment's agent keeps: the steps of the episode."""

    moves: Array


def alphazero(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """AlphaZero for an environment that it may plan with.

    Args:
        spec: the environment's, with a model; discrete actions, with or without a legal mask.
        settings: Settings.
        total_updates: see `muzero`.

    Raises:
        ValueError: continuous actions, no model, or a network that does not fit the observation.
    """
    if not isinstance(spec.action, Discrete):
        raise ValueError(f"alphazero needs discrete actions, but {spec.name} has continuous ones")
    if spec.model is None:
        raise ValueError(
            f"alphazero plans with the environment itself: {spec.name} needs env.model=true; or use muzero"
        )
    model, support, roots = spec.model, settings.support(), settings.roots
    reads = frames(spec, settings, "alphazero")
    shape = jax.eval_shape(reads.frame, spec.observation).shape
    net = judge(shape, spec.action.n, support.bins, settings.network())

    def init(key: Key) -> Params:
        network, statistics = net.init(key)
        params = {"network": network, "statistics": statistics, "temperature": jnp.float32(settings.temperature)}
        return params | {"settings": jax.tree.map(jnp.float32, traced(settings))}

    def node(params: Params, state: PyTree, timestep: TimeStep) -> Node:
        """What a state is worth, and what is to be done there."""
        seen = reads.scaled(reads.frame(timestep.observation))[None]
        (logits, value), _ = net.apply(params["network"], params["statistics"], seen, False)
        policy = masked(logits[0], legal(timestep.observation))
        discount = params["settings"]["discount"] * timestep.discount
        return Node(state, policy, expected(value[0], support), timestep.reward, discount)

    def plan(
        params: Params, memory: Remembered, timestep: TimeStep, key: Key, temperature: Array, exploring: bool
    ) -> tuple[Remembered, Found]:
        moves = jnp.where(timestep.first(), 0, memory.moves)
        root = node(params, timestep.observation["state"], timestep)
        root = root._replace(state=(root.state, timestep.last()))

        def step(state: PyTree, action: Array, key: Key) -> Node:
            state, over = state
            after, timestep = model(state, action, key)
            below = node(params, after, timestep)
            nothing = jax.tree.map(jnp.zeros_like, below)._replace(state=state)  # what no environment says past its end
            below = jax.tree.map(lambda end, on: jnp.where(over, end, on), nothing, below)
            return below._replace(state=(below.state, over | timestep.last()))

        temperature = settings.temperature_at(temperature, moves)
        mask = legal(timestep.observation)
        found = search(settings.searching(exploring), root, step, mask, key, temperature, exploring)
        return Remembered(moves + 1), found

    def act(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        search_key, explore_key = jax.random.split(key)
        memory, found = plan(params, memory, timestep, search_key, params["temperature"], True)
        action = settings.tried(explore_key, found.action, spec.action.n, timestep.observation)  # type: ignore[union-attr]
        return memory, action, {"policy": found.policy, "value": found.value}

    def exploit(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        memory, found = plan(params, memory, timestep, key, jnp.float32(0.0), False)  # chance is the environment's
        return memory, found.action.astype(jnp.int32), found._asdict()

    def loss(
        weights: PyTree, params: Params, returns: Array, sample: Sample
    ) -> tuple[Array, tuple[dict[str, Array], PyTree]]:
        trajectory, hyper = sample.trajectory, params["settings"]
        of_roots = lambda tree: jax.tree.map(lambda x: over_roots(x[:, :roots]), tree)  # noqa: E731
        timesteps, wanted, value = of_roots((trajectory.timesteps, trajectory.extras["policy"], returns))
        seen = reads.scaled(jax.vmap(reads.frame)(timesteps.observation))
        (logits, judged), statistics = net.apply(weights, params["statistics"], seen, True)
        logits = masked(logits, legal(timesteps.observation))
        going_on = ~timesteps.last()  # at an end there is nothing to do, and nothing to come
        each = {
            "policy": going_on * cross_entropy(wanted, logits),
            "value": going_on * cross_entropy(two_hot(value, support), judged),
        }
        whole = each["policy"] + hyper["value_coefficient"] * each["value"]
        l2 = 0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(weights))
        metrics = {f"loss/{name}": jnp.mean(x) for name, x in each.items()}
        metrics[CLIPPED] = jnp.sum(going_on * clipped(value, support)) / jnp.maximum(
            jnp.sum(going_on, dtype=jnp.float32), 1e-8
        )
        scale = jnp.repeat(sample.weights, roots)
        return jnp.mean(scale * whole) + hyper["l2_coefficient"] * l2, (metrics, statistics)

    def insert(params: Params, trajectory: Trajectory) -> Array:
        return settings.priority(trajectory, settings.returns(params["settings"]["discount"], trajectory), 0)

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        del key
        return descend(settings, loss, total_updates, state, params, sample)

    experience = settings.experience(0, settings.n_step)
    owns = ("network", "statistics", "temperature")
    ranking = insert if settings.ranked() else None
    learner = Learner(owns, ("settings",), experience, partial(fresh, settings), update, ranking)
    begun = Remembered(jnp.int32(0))
    return Agent(init, lambda params, rank, key: begun, act, exploit, (*owns, "settings"), {"alphazero": learner})
