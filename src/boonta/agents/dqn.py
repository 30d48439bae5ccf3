"""DQN (Mnih et al. 2015) with the parts of Rainbow that change neither noise nor distribution: the whole on one page.

Double Q-learning (van Hasselt et al. 2016), dueling heads (Wang et al. 2016), n-step targets (Sutton 1988) and
prioritized replay (Schaul et al. 2015), each a setting.
"""

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
from boonta.core.types import Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep
from boonta.nets.q_network import Heads, q_network
from boonta.ops.optimizers import Optimizer, global_norm, optimizer
from boonta.ops.returns import n_step_target


@dataclass(frozen=True)
class Settings(TorsoSettings):
    """DQN's settings."""

    activation: Literal["tanh", "relu", "silu", "gelu", "elu"] = setting("relu", "of the dense layers")
    dueling: bool = setting(True, "a value and advantages in place of one head")
    head: int = setting(0, "width of a layer in each head; 0 for none", low=0)
    double: bool = setting(True, "choose the target's action with the learning network")
    learning_rate: float = setting(1e-4, "step size of the optimiser", above=0.0, traced=True)
    anneal: bool = setting(False, "let the step size fall linearly to zero over the run")
    optimizer: Optimizer = setting("adam", "adam, rmsprop or sgd")
    epsilon: float = setting(1e-5, "epsilon of adam and rmsprop", above=0.0)
    max_grad_norm: float = setting(
        10.0, "global norm that gradients are clipped to; 0 for no clipping", low=0.0, traced=True
    )
    discount: float = setting(0.99, "gamma", low=0.0, high=1.0, traced=True)
    n_step: int = setting(3, "steps before bootstrapping", low=1)
    huber: float | None = setting(1.0, "error beyond which the loss is linear; none for squares", above=0.0)
    target_interval: int = setting(1000, "updates between copies into the target network", low=1)
    explore_first: float = setting(1.0, "probability of a random action at the start", low=0.0, high=1.0)
    explore_last: float = setting(0.05, "the same from where it has fallen linearly", low=0.0, high=1.0)
    explore_for: float = setting(0.1, "share of the run's updates in which it falls", low=0.0, high=1.0)
    explore_evaluation: float = setting(0.0, "the same in evaluations", low=0.0, high=1.0)
    unroll: int = setting(4, "steps acted between looks at the replay", low=1)
    batch: int = setting(32, "transitions in one update over all devices", low=1)
    capacity: int = setting(100_000, "transitions that replay keeps", low=1)
    minimum: int = setting(1000, "transitions in replay before learning starts", low=1)
    replay_ratio: float = setting(8.0, "transitions trained on for each step of an environment", low=0.001)
    sampler: Literal["uniform", "prioritized", "ranked"] = setting("prioritized", "how replay draws")
    priority_exponent: float = setting(0.6, "alpha of prioritized replay", low=0.0, high=1.0)
    importance_exponent: float = setting(0.4, "beta, of the weights that make up for it", low=0.0, high=1.0)


class State(NamedTuple):
    """The optimiser's state, the target network, and the number of updates made."""

    optimizer: optax.OptState
    target: PyTree
    updates: Array


def dqn(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """DQN for an environment.

    Args:
        spec: the environment's; discrete actions, with or without a legal mask.
        settings: Settings.
        total_updates: updates in the whole run, by which exploration and, where asked for, the step size fall; 0 if
            unknown, and then exploration is the last and nothing is annealed.

    Raises:
        ValueError: continuous actions, or a memory: that is what r2d2 is for.
    """
    if settings.core != "none":
        raise ValueError(f"agent.core must be none for dqn, got {settings.core!r}; use r2d2")
    net = q_network(spec, settings.options(), Heads(settings.dueling, settings.head))
    falls = settings.explore_for * total_updates

    def init(key: Key) -> Params:
        first = settings.explore_first if falls else settings.explore_last
        return {
            "network": net.init(key),
            "exploration": jnp.float32(first),
            "settings": jax.tree.map(jnp.float32, traced(settings)),
        }

    def act(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Array, Extras]:
        memory, q = net.step(params["network"], memory, timestep)
        return memory, explore(key, q, timestep.observation, params["exploration"]), {}

    def exploit(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Array, Extras]:
        memory, q = net.step(params["network"], memory, timestep)
        value = jnp.max(q)
        return memory, explore(key, q, timestep.observation, jnp.float32(settings.explore_evaluation)), {"value": value}

    def transform(learning_rate: Array | float, max_grad_norm: Array | float) -> optax.GradientTransformation:
        return optimizer(settings.optimizer, learning_rate, max_grad_norm, settings.epsilon)

    def learner_init(params: Params) -> State:
        target = jax.tree.map(jnp.copy, params["network"])
        return State(transform(0.0, 1.0).init(ravel(params["network"])[0]), target, jnp.int32(0))

    def values(weights: PyTree, timesteps: TimeStep) -> Array:
        """float32 [B, A], of time steps [B]."""
        return net.unroll(weights, (), jax.tree.map(lambda x: x[:, None], timesteps))[1][:, 0]

    def loss(weights: PyTree, target: Array, sample: Sample, scale: Array) -> tuple[Array, dict[str, Array]]:
        timesteps = sample.trajectory.timesteps
        begin = jax.tree.map(lambda x: x[:, 0], timesteps)
        q = values(weights, begin)
        chosen = jnp.take_along_axis(q, timesteps.action[:, 1:2], axis=1)[:, 0]
        error = target - chosen
        far = 0.5 * error**2 if settings.huber is None else optax.huber_loss(error, delta=settings.huber)
        means = {"loss/td": jnp.mean(far * scale), "loss/q": jnp.mean(chosen), "loss/error": jnp.mean(jnp.abs(error))}
        return means["loss/td"], means | {"error": error}

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        del key
        hyper, timesteps = params["settings"], sample.trajectory.timesteps
        arrived = jax.tree.map(lambda x: x[:, 1:], timesteps)
        reward, discount = settings.transform_reward(arrived.reward), hyper["discount"] * arrived.discount
        total, beyond, at = jax.vmap(n_step_target)(reward, discount, arrived.first())
        end = jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, at), timesteps)
        later = values(state.target, end)
        chooser = values(params["network"], end) if settings.double else later
        target = total + beyond * best(chooser, later, end.observation)
        # From LAST to FIRST nothing was done, and nothing is to be learned.
        mask = (~arrived.first()[:, 0]).astype(jnp.float32)
        scale = mask * normalized_weights(sample.weights)
        flat, unravel = ravel(params["network"])
        grads, metrics = jax.grad(loss, has_aux=True)(params["network"], target, sample, scale)
        error = metrics.pop("error")
        grads, metrics = average((ravel(grads)[0], metrics))
        step_size = annealed(hyper["learning_rate"], state.updates, total_updates if settings.anneal else 0)
        steps, moments = transform(step_size, hyper["max_grad_norm"]).update(grads, state.optimizer, flat)
        network, updates = unravel(flat + steps), state.updates + 1  # type: ignore[operator]
        renew = updates % settings.target_interval == 0
        target_network = jax.tree.map(lambda new, old: jnp.where(renew, new, old), network, state.target)
        fallen = jnp.minimum(jnp.float32(updates) / falls, 1.0) if falls else jnp.float32(1.0)
        exploration = settings.explore_first + fallen * (settings.explore_last - settings.explore_first)
        metrics |= {"loss/grad_norm": global_norm(grads), "loss/exploration": exploration}
        owned = {"network": network, "exploration": exploration}
        return State(moments, target_network, updates), owned, Feedback(metrics, mask * jnp.abs(error))

    experience = Experience(
        length=settings.n_step,
        batch=settings.batch,
        period=1,
        unroll=settings.unroll,
        minimum=settings.minimum,
        capacity=settings.capacity,
        sampler=settings.sampler,
        samples_per_insert=settings.replay_ratio,
        priority_exponent=settings.priority_exponent,
        importance_exponent=settings.importance_exponent,
        trained_step=0,
    )
    owns = ("network", "exploration")
    learner = Learner(owns, ("settings",), experience, learner_init, update)
    return Agent(init, lambda params, rank, key: (), act, exploit, owns, {"dqn": learner})
