"""V-trace actor-critic, the agent of IMPALA (Espeholt et al. 2018): the whole algorithm on one page."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from boonta.agents.common import (
    NetworkSettings,
    annealed,
    init_statistics,
    masked_means,
    network,
    normalize_observation,
    update_statistics,
)
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.devices import average
from boonta.core.flat import ravel
from boonta.core.settings import setting, traced
from boonta.core.spec import Spec
from boonta.core.types import Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep, Trajectory
from boonta.ops.blocks import summed
from boonta.ops.optimizers import Optimizer, global_norm, optimizer
from boonta.ops.vtrace import vtrace as vtrace_targets


@dataclass(frozen=True)
class Settings(NetworkSettings):
    """V-trace's settings. Losses are means over time and batch, where the paper's are sums."""

    learning_rate: float = setting(1e-3, "step size of the optimiser", above=0.0, traced=True)
    anneal: bool = setting(True, "let the step size fall linearly to zero over the run")
    optimizer: Optimizer = setting("adam", "adam, rmsprop or sgd")
    epsilon: float = setting(1e-5, "epsilon of adam and rmsprop", above=0.0)
    decay: float = setting(0.99, "decay of rmsprop", low=0.0, high=0.9999)
    max_grad_norm: float = setting(
        0.5, "global norm that gradients are clipped to; 0 for no clipping", low=0.0, traced=True
    )
    discount: float = setting(0.99, "gamma", low=0.0, high=1.0, traced=True)
    trace: float = setting(1.0, "lambda, the decay of the traces", low=0.0, high=1.0, traced=True)
    rho_clip: float = setting(1.0, "rho bar, the clip of the ratios in the value's target", above=0.0, traced=True)
    pg_rho_clip: float = setting(1.0, "the clip of the ratios in the policy gradient", above=0.0, traced=True)
    entropy_cost: float = setting(0.01, "weight of the entropy bonus", low=0.0, traced=True)
    value_cost: float = setting(0.5, "weight of the value loss", low=0.0, traced=True)
    unroll: int = setting(20, "T, steps of a trajectory", low=1)
    batch: int = setting(
        32, "trajectories in one update over all devices; by default also the number of environments", low=1
    )


class State(NamedTuple):
    """The optimiser's state and the number of updates made."""

    optimizer: optax.OptState
    updates: Array


def vtrace(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """V-trace for an environment.

    Args:
        spec: the environment's; discrete or continuous actions, with or without a legal mask.
        settings: Settings.
        total_updates: updates in the whole run, which annealing needs; 0 if unknown, and then nothing is annealed.
    """
    net = network(spec, settings)

    def init(key: Key) -> Params:
        params = {"network": net.init(key), "settings": jax.tree.map(jnp.float32, traced(settings))}
        if settings.normalize_observations:
            params["normalizer"] = init_statistics(net.reads)
        return params

    def see(params: Params, timesteps: TimeStep) -> TimeStep:
        if not settings.normalize_observations:
            return timesteps
        return normalize_observation(net.reads, params["normalizer"], timesteps)

    def act(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Array, Extras]:
        memory, policy, _ = net.step(params["network"], memory, see(params, timestep))
        sample = policy.sample(key)
        return memory, net.action(policy, sample), {"sample": sample, "log_prob": policy.log_prob(sample)}

    def exploit(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Array, Extras]:
        del key
        memory, policy, value = net.step(params["network"], memory, see(params, timestep))
        return memory, net.action(policy, policy.mode()), {"value": value}

    def transform(learning_rate: Array | float, max_grad_norm: Array | float) -> optax.GradientTransformation:
        return optimizer(settings.optimizer, learning_rate, max_grad_norm, settings.epsilon, settings.decay)

    def learner_init(params: Params) -> State:
        return State(transform(0.0, 1.0).init(ravel(params["network"])[0]), jnp.int32(0))

    def loss(
        weights: PyTree, hyper: dict[str, Array], trajectory: Trajectory, count: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The three terms of section 4.2, summed over what happened inside episodes, over `count`."""
        memory, timesteps, extras, _ = trajectory
        policy, value = net.unroll(weights, memory, timesteps)
        policy = jax.tree.map(lambda x: x[:, :-1], policy)
        arrived = jax.tree.map(lambda x: x[:, 1:], timesteps)
        first, discount = arrived.first(), hyper["discount"] * arrived.discount
        log_prob, entropy = policy.log_prob(extras["sample"]), policy.entropy()
        ratio = jax.lax.stop_gradient(jnp.exp(log_prob - extras["log_prob"]))
        targets = jax.vmap(vtrace_targets, (0, 0, 0, 0, 0, None, None, None))
        target, advantage = targets(
            settings.transform_reward(arrived.reward), discount, jax.lax.stop_gradient(value), ratio, first,
            hyper["trace"], hyper["rho_clip"], hyper["pg_rho_clip"],
        )  # fmt: skip
        mask = (~first).astype(jnp.float32)
        terms = {
            "loss/policy": -log_prob * advantage,
            "loss/value": 0.5 * (target - value[:, :-1]) ** 2,
            "loss/entropy": entropy,
            "loss/ratio": ratio,
        }
        means = masked_means(terms, mask, count)
        value_loss = hyper["value_cost"] * means["loss/value"]
        return means["loss/policy"] + value_loss - hyper["entropy_cost"] * means["loss/entropy"], means

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        del key
        hyper, trajectory = params["settings"], sample.trajectory
        step_size = annealed(hyper["learning_rate"], state.updates, total_updates if settings.anneal else 0)
        flat, unravel = ravel(params["network"])
        inside = ~trajectory.timesteps.first()[:, 1:]
        count = jnp.maximum(average(jnp.sum(inside, dtype=jnp.float32)), 1e-8)

        def gradient(part: Trajectory) -> tuple[PyTree, dict[str, Array]]:
            part = part._replace(timesteps=see(params, part.timesteps))
            return jax.grad(loss, has_aux=True)(params["network"], hyper, part, count)

        grads, metrics = summed(gradient, trajectory)
        grads, metrics = average((ravel(grads)[0], metrics))
        steps, moments = transform(step_size, hyper["max_grad_norm"]).update(grads, state.optimizer, flat)
        owned = {"network": unravel(flat + steps)}  # type: ignore[operator]
        if settings.normalize_observations:
            owned["normalizer"] = update_statistics(net.reads, params["normalizer"], trajectory)
        metrics |= {"loss/grad_norm": global_norm(grads), "loss/learning_rate": step_size}
        return State(moments, state.updates + 1), owned, Feedback(metrics)

    owns = ("network", "normalizer") if settings.normalize_observations else ("network",)
    experience = Experience(length=settings.unroll, batch=settings.batch)
    learner = Learner(owns, ("settings",), experience, learner_init, update)
    return Agent(init, lambda params, rank, key: net.memory(), act, exploit, owns, {"vtrace": learner})
