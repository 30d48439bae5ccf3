"""MuZero (Schrittwieser et al. 2020), by default with Gumbel's search (Danihelka et al. 2022): the whole on one page.

The model also predicts the discount: where it is -1 the turn passes to the opponent, where it is 0 the episode ends.
Targets, losses and the residual network are those of MooZi (sections 5.2.7 to 5.2.9).
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from boonta.agents.common import CLIPPED
from boonta.agents.planning import PlannerSettings, State, cross_entropy, descend, frames, fresh, masked, over_roots
from boonta.core.agent import Agent, Learner
from boonta.core.settings import setting, traced
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Array, Extras, Feedback, Key, Params, PyTree, Sample, TimeStep, Trajectory
from boonta.nets.inputs import legal
from boonta.nets.planner import Answer, planner
from boonta.ops import history
from boonta.ops.imagined import TURNS, Targets, unroll_targets
from boonta.ops.search import Found, Node, search
from boonta.ops.square_root import square_root
from boonta.ops.two_hot import clipped, expected, two_hot


@dataclass(frozen=True)
class Settings(PlannerSettings):
    """MuZero's settings."""

    layers: tuple[int, ...] = setting((1, 1, 1), "mlp: layers of representation, dynamics, prediction", low=1)
    blocks: tuple[int, ...] = setting((6, 2, 1), "resnet: blocks of representation, dynamics, prediction", low=0)
    history: int = setting(1, "frames, and the actions before them, that are stacked; 0: the frame alone", low=0)
    beyond: Literal["absorbing", "dummy"] = setting(
        "absorbing", "how the model ends: by a discount of 0, or by a dummy action that the policy learns to take"
    )
    unroll_steps: int = setting(5, "K, steps that the model is unrolled in learning", low=1)
    reward_coefficient: float = setting(1.0, "of the reward's and the discount's losses", low=0.0, traced=True)
    average_reward_loss: bool = setting(
        False, "divide the reward's and the discount's losses by K, as the paper does, where MooZi sums them"
    )
    consistency_coefficient: float = setting(0.0, "of the self-consistency loss", low=0.0)
    target_interval: int = setting(1, "updates between copies of the network to what acts in training", low=1)


class Remembered(NamedTuple):
    """What an environment's agent keeps: the stack but its newest, () if that is all; and the steps of the episode."""

    history: PyTree
    moves: Array


def muzero(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """MuZero for an environment.

    Args:
        spec: the environment's; discrete actions, with or without a legal mask.
        settings: Settings.
        total_updates: updates in the whole run, which annealing and the temperature's fall need; 0 if unknown, and then
            there is neither.

    Raises:
        ValueError: continuous actions, or a network that does not fit the observation.
    """
    if not isinstance(spec.action, Discrete):
        raise ValueError(f"muzero needs discrete actions, but {spec.name} has continuous ones")
    count, dummy = spec.action.n, settings.beyond == "dummy"
    actions = count + dummy  # the dummy action is the last
    stacked, K, roots = settings.history, settings.unroll_steps, settings.roots
    burn_in, support, turns = max(stacked - 1, 0), settings.support(), jnp.asarray(TURNS, jnp.float32)
    reads = frames(spec, settings, "muzero")
    seen = jax.eval_shape(reads.frame, spec.observation)
    begun = history.empty(seen.shape, seen.dtype, max(stacked, 1))

    def look(stack: history.History) -> Array:
        """What the representation sees of a stack."""
        stack = stack._replace(frames=reads.scaled(stack.frames))
        return history.planes(stack, actions) if stacked else stack.frames[-1]

    def first_look() -> Array:
        return look(history.follow(begun, jnp.zeros(seen.shape, seen.dtype), jnp.int32(0), jnp.bool_(True))[1])

    net = planner(jax.eval_shape(first_look).shape, actions, support.bins, settings.network())

    def init(key: Key) -> Params:
        network, statistics = net.init(key)
        params = {"network": network, "statistics": statistics, "temperature": jnp.float32(settings.temperature)}
        if settings.target_interval > 1:
            params["target"] = jax.tree.map(jnp.copy, {"network": network, "statistics": statistics})
        return params | {"settings": jax.tree.map(jnp.float32, traced(settings))}

    def memory(params: Params, rank: Array, key: Key) -> Remembered:
        del params, rank, key
        return Remembered(begun if stacked > 1 else (), jnp.int32(0))

    def node(answer: Answer, discount: Array) -> Node:
        """Of a batch of one."""
        answer = jax.tree.map(lambda x: x[0], answer)
        value, reward = expected(answer.value, support), expected(answer.reward, support)
        return Node(answer.state, answer.policy, value, reward, discount * (jax.nn.softmax(answer.discount) @ turns))

    def plan(
        params: Params, memory: Remembered, timestep: TimeStep, key: Key, temperature: Array, exploring: bool
    ) -> tuple[Remembered, Found]:
        first, discount = timestep.first(), params["settings"]["discount"]
        acting = params.get("target", params) if exploring else params
        weights, statistics = acting["network"], acting["statistics"]
        before = memory.history if stacked > 1 else begun
        remembered, stack = history.follow(before, reads.frame(timestep.observation), timestep.action, first)
        moves = jnp.where(first, 0, memory.moves)
        temperature = settings.temperature_at(temperature, moves)
        root, _ = net.initial(weights, statistics, look(stack)[None], False)
        mask = legal(timestep.observation)
        if dummy:
            mask = jnp.append(jnp.ones(count, bool) if mask is None else mask, False)
        root = root._replace(policy=masked(root.policy, mask))

        def step(state: PyTree, action: Array, key: Key) -> Node:
            del key  # the model is deterministic
            answer, _ = net.recurrent(weights, statistics, state[None], action[None], False)
            return node(_without_end(answer) if dummy else answer, discount)

        found = search(settings.searching(exploring), node(root, discount), step, mask, key, temperature, exploring)
        return Remembered(remembered if stacked > 1 else (), moves + 1), found

    def act(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        search_key, explore_key = jax.random.split(key)
        memory, found = plan(params, memory, timestep, search_key, params["temperature"], True)
        action = settings.tried(explore_key, found.action, count, timestep.observation)
        return memory, action, {"policy": found.policy, "value": found.value}

    def exploit(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        del key  # no chance in it
        memory, found = plan(params, memory, timestep, jax.random.key(0), jnp.float32(0.0), False)
        return memory, found.action.astype(jnp.int32), found._asdict()

    def targets(trajectory: Trajectory, value: Array, root: Array) -> tuple[Array, Targets]:
        """The actions, int32 [K], and targets of one window's unroll from this step."""
        return unroll_targets(trajectory.timesteps, trajectory.extras["policy"], value, root, K, dummy)

    def loss(
        weights: PyTree, params: Params, value: Array, sample: Sample
    ) -> tuple[Array, tuple[dict[str, Array], PyTree]]:
        trajectory, hyper, used = sample.trajectory, params["settings"], burn_in + roots + 1
        begin = jax.tree.map(lambda x: x[:, :used], trajectory.timesteps)
        seen = jax.vmap(jax.vmap(reads.frame))(begin.observation)
        stacks = jax.vmap(history.follow_all, (0, 0, 0, None))(seen, begin.action, begin.first(), max(stacked, 1))
        inputs = jax.vmap(jax.vmap(look))(jax.tree.map(lambda x: x[:, burn_in:], stacks))  # [B, roots + 1, ...]
        first = burn_in + jnp.arange(roots)
        unrolls = jax.vmap(jax.vmap(targets, (None, None, 0)), (0, 0, None))(trajectory, value, first)
        moves, aim = jax.tree.map(lambda x: jnp.swapaxes(over_roots(x), 0, 1), unrolls)  # [K, N], [K + 1, N, ...]
        at_root = jax.tree.map(lambda x: over_roots(x[:, burn_in:-1]), begin)
        root, statistics = net.initial(weights, params["statistics"], over_roots(inputs[:, :-1]), True)
        mask = legal(at_root.observation)
        if mask is not None and dummy:
            mask = jnp.pad(mask, ((0, 0), (0, 1)), constant_values=True)
        # As in the search; below the root policies learn what is legal.
        root = root._replace(policy=masked(root.policy, mask))

        def terms(answer: Answer, aim: Targets, imagined: bool) -> dict[str, Array]:
            """Losses [N] of answers [N]."""
            each = {
                "policy": aim.has_policy * cross_entropy(aim.policy, answer.policy),
                "value": aim.known * cross_entropy(two_hot(aim.value, support), answer.value),
            }
            if imagined:
                each["reward"] = aim.known * cross_entropy(two_hot(aim.reward, support), answer.reward)
                turn = _without_end(answer) if dummy else answer
                each["turn"] = aim.has_turn * cross_entropy(aim.turn, turn.discount)
            return each

        def body(carry: tuple[PyTree, PyTree], x: tuple[Array, Targets]) -> tuple[tuple[PyTree, PyTree], PyTree]:
            (state, statistics), (action, aim) = carry, x
            state = 0.5 * state + jax.lax.stop_gradient(0.5 * state)
            answer, statistics = net.recurrent(weights, statistics, state, action, True)
            return (answer.state, statistics), (terms(answer, aim, True), answer.state)

        scale = jnp.repeat(sample.weights, roots)
        later = jax.tree.map(lambda x: x[1:], aim)
        (_, statistics), (imagined, states) = jax.lax.scan(body, (root.state, statistics), (moves, later))
        now = terms(root, jax.tree.map(lambda x: x[0], aim), False)
        imagined = jax.tree.map(lambda x: jnp.sum(x, axis=0), imagined)
        steps = K if settings.average_reward_loss else 1
        each = {
            "policy": now["policy"] + imagined["policy"] / K,
            "value": now["value"] + imagined["value"] / K,
            "reward": imagined["reward"] / steps,
            "turn": imagined["turn"] / steps,
        }
        whole = each["policy"] + hyper["value_coefficient"] * each["value"]
        whole += hyper["reward_coefficient"] * (each["reward"] + each["turn"])
        if settings.consistency_coefficient:
            next_step, _ = net.initial(weights, params["statistics"], over_roots(inputs[:, 1:]), True)
            wanted = jax.lax.stop_gradient(next_step.state.reshape(len(scale), -1))
            each["consistency"] = ~at_root.last() * (1.0 - _cosine(net.project(weights, states[0]), wanted))
            whole += settings.consistency_coefficient * each["consistency"]
        l2 = 0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(weights))
        metrics = {f"loss/{name}": jnp.mean(x) for name, x in each.items()}
        beyond = aim.known * (clipped(aim.value, support) | clipped(aim.reward, support).at[0].set(False))
        metrics[CLIPPED] = jnp.sum(beyond) / jnp.maximum(jnp.sum(aim.known), 1e-8)
        metrics["loss/entropy"] = jnp.mean(-jnp.sum(aim.policy[0] * jnp.log(aim.policy[0] + 1e-9), axis=-1))
        return jnp.mean(scale * whole) + hyper["l2_coefficient"] * l2, (metrics, statistics)

    def insert(params: Params, trajectory: Trajectory) -> Array:
        return settings.priority(trajectory, settings.returns(params["settings"]["discount"], trajectory), burn_in)

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        del key
        state, improved, feedback = descend(settings, loss, total_updates, state, params, sample)
        if settings.target_interval > 1:
            renew = state.updates % settings.target_interval == 0
            newest = {name: improved[name] for name in ("network", "statistics")}
            improved["target"] = jax.tree.map(lambda new, old: jnp.where(renew, new, old), newest, params["target"])
        return state, improved, feedback

    experience = settings.experience(burn_in, K + settings.n_step)
    owns = ("network", "statistics", "temperature", *(("target",) if settings.target_interval > 1 else ()))
    ranking = insert if settings.ranked() else None
    learner = Learner(owns, ("settings",), experience, partial(fresh, settings), update, ranking)
    return Agent(init, memory, act, exploit, (*owns, "settings"), {"muzero": learner})


def _without_end(answer: Answer) -> Answer:
    """Answers whose discount cannot be 0."""
    return answer._replace(discount=answer.discount.at[..., TURNS.index(0.0)].set(jnp.finfo(jnp.float32).min))


def _cosine(a: Array, b: Array) -> Array:
    """float32 [N], of vectors [N, d]."""
    length = lambda x: square_root(jnp.sum(x**2, axis=-1))  # noqa: E731
    return jnp.sum(a * b, axis=-1) / jnp.maximum(length(a) * length(b), 1e-8)
