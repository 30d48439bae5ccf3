"""R2D2 (Kapturowski et al. 2019) as SEED RL has it (Espeholt et al. 2020, tables 8 and 9): the whole on one page."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from boonta.agents.common import TorsoSettings, annealed
from boonta.agents.values import best, explore, normalized_weights
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.devices import average
from boonta.core.flat import ravel
from boonta.core.settings import setting, traced
from boonta.core.spec import Spec
from boonta.core.types import Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep, Trajectory
from boonta.nets.dense import Init
from boonta.nets.q_network import Heads, q_network
from boonta.ops.optimizers import Optimizer, global_norm, optimizer
from boonta.ops.rescaling import squash, unsquash
from boonta.ops.returns import n_step_returns


@dataclass(frozen=True)
class Settings(TorsoSettings):
    """R2D2's settings; the defaults are those of SEED RL's table 8."""

    hidden: tuple[int, ...] = setting((512,), "widths of the dense layers; of a convolutional body the last one", low=1)
    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = setting("relu", "of the dense layers")
    core: Literal["lstm", "gru"] = setting("lstm", "memory between body and heads: lstm or gru")
    core_size: int = setting(512, "width of the memory", low=1)
    previous: bool = setting(True, "feed the previous action and reward to the memory")
    initial: Init = setting(
        "glorot", "how kernels are made: orthogonal, glorot (uniform), or fan_in (uniform, and biases too)"
    )
    dueling: bool = setting(True, "a value and advantages in place of one head")
    head: int = setting(512, "width of a layer in each head; 0 for none", low=0)
    double: bool = setting(True, "choose the target's action with the learning network")
    learning_rate: float = setting(1e-4, "step size of the optimiser", above=0.0, traced=True)
    anneal: bool = setting(False, "let the step size fall linearly to zero over the run")
    optimizer: Optimizer = setting("adam", "adam, rmsprop or sgd")
    epsilon: float = setting(1e-3, "epsilon of adam and rmsprop", above=0.0)
    max_grad_norm: float = setting(
        80.0, "global norm that gradients are clipped to; 0 for no clipping", low=0.0, traced=True
    )
    discount: float = setting(0.997, "gamma", low=0.0, high=1.0, traced=True)
    n_step: int = setting(5, "steps before bootstrapping", low=1)
    rescale: bool = setting(True, "learn values squashed by h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x")
    target_interval: int = setting(2500, "updates between copies into the target network", low=1)
    explore_base: float = setting(
        0.4, "environment i of N acts at random with probability base^(1 + power i / (N - 1))", low=0.0, high=1.0
    )
    explore_power: float = setting(7.0, "see explore_base", low=0.0)
    explore_evaluation: float = setting(1e-3, "probability of a random action in evaluations", low=0.0, high=1.0)
    length: int = setting(120, "steps of a sequence, burn-in included", low=2)
    burn_in: int = setting(40, "its first steps, which only bring the memory up to date", low=0)
    period: int = setting(40, "steps between the beginnings of sequences, and of an unroll", low=1)
    batch: int = setting(64, "sequences in one update over all devices", low=1)
    capacity: int = setting(100_000, "sequences that replay keeps", low=1)
    minimum: int = setting(5000, "sequences in replay before learning starts", low=1)
    replay_ratio: float = setting(0.75, "steps trained on, burn-in apart, for each step of an environment", low=0.001)
    sampler: Literal["uniform", "prioritized", "ranked"] = setting("prioritized", "how replay draws")
    priority_exponent: float = setting(0.9, "alpha of prioritized replay", low=0.0, high=1.0)
    importance_exponent: float = setting(0.6, "beta, of the weights that make up for it", low=0.0, high=1.0)
    priority_mix: float = setting(
        0.9, "eta: a sequence's priority is eta times its highest error and 1 - eta times the mean", low=0.0, high=1.0
    )


class Remembered(NamedTuple):
    """What an environment's agent keeps: the network's memory, and how likely it acts at random."""

    core: Memory
    epsilon: Array


class State(NamedTuple):
    """The optimiser's state, the target network, and the number of updates made."""

    optimizer: optax.OptState
    target: PyTree
    updates: Array


def r2d2(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """R2D2 for an environment.

    Args:
        spec: the environment's; discrete actions, with or without a legal mask.
        settings: Settings.
        total_updates: updates in the whole run, which annealing needs; 0 if unknown, and then nothing is annealed.

    Raises:
        ValueError: continuous actions, or a burn-in that leaves nothing to train on.
    """
    trained = settings.length - settings.burn_in
    if trained < 2:  # the first priority leaves the last step out
        raise ValueError(f"agent.burn_in must be at most agent.length {settings.length} - 2, got {settings.burn_in}")
    net = q_network(spec, settings.options(), Heads(settings.dueling, settings.head))
    h, h_inverse = (squash, unsquash) if settings.rescale else (lambda x: x, lambda x: x)

    def init(key: Key) -> Params:
        return {"network": net.init(key), "settings": jax.tree.map(jnp.float32, traced(settings))}

    def memory(params: Params, rank: Array, key: Key) -> Remembered:
        del params, key
        return Remembered(net.memory(), jnp.float32(settings.explore_base) ** (1.0 + settings.explore_power * rank))

    def act(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        core, q = net.step(params["network"], memory.core, timestep)
        action = explore(key, q, timestep.observation, memory.epsilon)
        return memory._replace(core=core), action, {"q": q}

    def exploit(params: Params, memory: Remembered, timestep: TimeStep, key: Key) -> tuple[Remembered, Array, Extras]:
        core, q = net.step(params["network"], memory.core, timestep)
        action = explore(key, q, timestep.observation, jnp.float32(settings.explore_evaluation))
        return memory._replace(core=core), action, {"value": h_inverse(jnp.max(q))}

    def transform(learning_rate: Array | float, max_grad_norm: Array | float) -> optax.GradientTransformation:
        return optimizer(settings.optimizer, learning_rate, max_grad_norm, settings.epsilon)

    def learner_init(params: Params) -> State:
        target = jax.tree.map(jnp.copy, params["network"])
        return State(transform(0.0, 1.0).init(ravel(params["network"])[0]), target, jnp.int32(0))

    def errors(hyper: dict[str, Array], timesteps: TimeStep, q: Array, target_q: Array) -> tuple[Array, Array]:
        """TD errors of one sequence and where they count, float32 [T] both, of values [T+1, A] of two networks."""
        arrived = jax.tree.map(lambda x: x[1:], timesteps)
        value = h_inverse(best(q if settings.double else target_q, target_q, timesteps.observation))
        reward, discount = settings.transform_reward(arrived.reward), hyper["discount"] * arrived.discount
        target = h(n_step_returns(reward, discount, value, settings.n_step, arrived.first()))
        chosen = jnp.take_along_axis(q[:-1], arrived.action[:, None], axis=1)[:, 0]
        mask = (~arrived.first()).astype(jnp.float32)
        return mask * (jax.lax.stop_gradient(target) - chosen), mask

    def priority(error: Array, mask: Array) -> Array:
        """Of one sequence (section 2.3 of R2D2)."""
        error = jnp.abs(error)
        mean = jnp.sum(error) / jnp.maximum(jnp.sum(mask), 1.0)
        return settings.priority_mix * jnp.max(error) + (1.0 - settings.priority_mix) * mean

    def insert(params: Params, trajectory: Trajectory) -> Array:
        """The first priority, by the values of acting time: all of them but that of the step after the last."""
        acted = jax.tree.map(lambda x: x[settings.burn_in : -1], trajectory.timesteps)
        q = trajectory.extras["q"][settings.burn_in :]
        return priority(*errors(params["settings"], acted, q, q))

    def unrolled(weights: PyTree, trajectory: Trajectory) -> Array:
        """Values [B, T+1, A] after the burn-in, through which no gradient goes."""
        core, n = trajectory.memory.core, settings.burn_in
        before, rest = (jax.tree.map(lambda x: x[:, part], trajectory.timesteps) for part in (slice(n), slice(n, None)))  # noqa: B023
        if n:
            core = jax.lax.stop_gradient(net.unroll(weights, core, before)[0])
        return net.unroll(weights, core, rest)[1]

    def loss(
        weights: PyTree, hyper: dict[str, Array], target_q: Array, sample: Sample, scale: Array
    ) -> tuple[Array, tuple[dict[str, Array], Array]]:
        q = unrolled(weights, sample.trajectory)
        rest = jax.tree.map(lambda x: x[:, settings.burn_in :], sample.trajectory.timesteps)
        error, mask = jax.vmap(errors, (None, 0, 0, 0))(hyper, rest, q, target_q)
        each = 0.5 * jnp.sum(error**2, axis=1)
        count = jnp.maximum(jnp.sum(mask), 1.0)
        means = {
            "loss/td": jnp.mean(scale * each),
            "loss/q": jnp.mean(jnp.max(q, axis=-1)),
            "loss/error": jnp.sum(jnp.abs(error)) / count,
        }
        return means["loss/td"], (means, jax.vmap(priority)(error, mask))

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        del key
        hyper = params["settings"]
        target_q = unrolled(state.target, sample.trajectory)
        scale = normalized_weights(sample.weights)
        flat, unravel = ravel(params["network"])
        grads, (metrics, priorities) = jax.grad(loss, has_aux=True)(params["network"], hyper, target_q, sample, scale)
        grads, metrics = average((ravel(grads)[0], metrics))
        step_size = annealed(hyper["learning_rate"], state.updates, total_updates if settings.anneal else 0)
        steps, moments = transform(step_size, hyper["max_grad_norm"]).update(grads, state.optimizer, flat)
        network, updates = unravel(flat + steps), state.updates + 1  # type: ignore[operator]
        renew = updates % settings.target_interval == 0
        target = jax.tree.map(lambda new, old: jnp.where(renew, new, old), network, state.target)
        metrics |= {"loss/grad_norm": global_norm(grads)}
        return State(moments, target, updates), {"network": network}, Feedback(metrics, priorities)

    experience = Experience(
        length=settings.length,
        batch=settings.batch,
        period=settings.period,
        minimum=settings.minimum,
        capacity=settings.capacity,
        sampler=settings.sampler,
        samples_per_insert=settings.replay_ratio * settings.period / trained,
        priority_exponent=settings.priority_exponent,
        importance_exponent=settings.importance_exponent,
    )
    learner = Learner(("network",), ("settings",), experience, learner_init, update, insert)
    return Agent(init, memory, act, exploit, ("network",), {"r2d2": learner})
