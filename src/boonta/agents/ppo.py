"""Proximal policy optimisation (Schulman et al. 2017): the whole algorithm on one page."""

from dataclasses import dataclass, replace
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
from boonta.core import devices
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.devices import average
from boonta.core.flat import ravel
from boonta.core.settings import Refused, setting, traced
from boonta.core.spec import Discrete, Spec
from boonta.core.types import Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep
from boonta.ops.blocks import fitting, summed
from boonta.ops.gae import gae
from boonta.ops.optimizers import Optimizer, global_norm, optimizer
from boonta.ops.shuffle import permutation
from boonta.ops.square_root import square_root


@dataclass(frozen=True)
class Settings(NetworkSettings):
    """PPO's settings; the defaults are those of the usual implementations for small control tasks."""

    learning_rate: float = setting(2.5e-4, "step size of the optimiser", above=0.0, traced=True)
    anneal: bool = setting(True, "let the step size fall linearly to zero over the run")
    optimizer: Optimizer = setting("adam", "adam, rmsprop or sgd")
    epsilon: float = setting(1e-5, "epsilon of adam and rmsprop", above=0.0)
    max_grad_norm: float = setting(
        0.5, "global norm that gradients are clipped to; 0 for no clipping", low=0.0, traced=True
    )
    discount: float = setting(0.99, "gamma", low=0.0, high=1.0, traced=True)
    gae_lambda: float = setting(0.95, "lambda of generalised advantage estimation", low=0.0, high=1.0, traced=True)
    clip: float = setting(0.2, "how far the ratio may move from 1", above=0.0, traced=True)
    value_clip: float | None = setting(
        None, "how far a value may move from the acting one; none for no limit", above=0.0
    )
    entropy_cost: float | None = setting(
        0.01,
        "weight of the entropy bonus; none for 0.01 where actions are discrete, and 0 where they are continuous",
        low=0.0, traced=True,
    )  # fmt: skip
    value_cost: float = setting(0.5, "weight of the value loss", low=0.0, traced=True)
    unroll: int = setting(128, "T, steps of a trajectory", low=1)
    batch: int = setting(
        64, "trajectories in one update over all devices; by default also the number of environments", low=1
    )
    epochs: int = setting(4, "passes over each batch", low=1)
    minibatches: int = setting(4, "gradient steps in one pass; steps that they do not divide are left out of it", low=1)
    normalize_advantages: bool = setting(True, "give the advantages of a minibatch mean 0 and variance 1")


class State(NamedTuple):
    """The optimiser's state and the number of updates made."""

    optimizer: optax.OptState
    updates: Array


class Piece(NamedTuple):
    """What a gradient step needs of L consecutive steps: single ones, or whole trajectories where there is memory."""

    memory: Memory
    timesteps: TimeStep
    sample: Array
    log_prob: Array
    value: Array
    advantage: Array
    target: Array
    mask: Array


def ppo(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """PPO for an environment.

    Args:
        spec: the environment's; discrete or continuous actions, with or without a legal mask.
        settings: Settings.
        total_updates: updates in the whole run, which annealing needs; 0 if unknown, and then nothing is annealed.

    Raises:
        ValueError: more minibatches than there is to divide, or a body that does not fit the observation.
    """
    if settings.minibatches > settings.batch * (1 if settings.core != "none" else settings.unroll):
        unit = "trajectories of a batch" if settings.core != "none" else "steps of a batch"
        raise ValueError(f"agent.minibatches must be at most the number of {unit}, got {settings.minibatches}")
    if settings.entropy_cost is None:
        settings = replace(settings, entropy_cost=0.01 if isinstance(spec.action, Discrete) else 0.0)
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
        memory, policy, value = net.step(params["network"], memory, see(params, timestep))
        sample = policy.sample(key)
        extras = {"sample": sample, "log_prob": policy.log_prob(sample), "value": value}
        return memory, net.action(policy, sample), extras

    def exploit(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Array, Extras]:
        del key
        memory, policy, value = net.step(params["network"], memory, see(params, timestep))
        return memory, net.action(policy, policy.mode()), {"value": value}

    def learner_init(params: Params) -> State:
        return State(
            optimizer(settings.optimizer, 0.0, 1.0, settings.epsilon).init(ravel(params["network"])[0]),
            jnp.int32(0),
        )

    def loss(weights: PyTree, hyper: dict[str, Array], piece: Piece, count: Array) -> tuple[Array, dict[str, Array]]:
        policy, value = net.unroll(weights, piece.memory, piece.timesteps)
        log_prob, entropy = policy.log_prob(piece.sample), policy.entropy()
        ratio = jnp.exp(log_prob - piece.log_prob)
        clipped = jnp.clip(ratio, 1 - hyper["clip"], 1 + hyper["clip"])
        error = (value - piece.target) ** 2
        if settings.value_clip is not None:
            near = piece.value + jnp.clip(value - piece.value, -settings.value_clip, settings.value_clip)
            error = jnp.maximum(error, (near - piece.target) ** 2)
        terms = {
            "loss/policy": -jnp.minimum(ratio * piece.advantage, clipped * piece.advantage),
            "loss/value": 0.5 * error,
            "loss/entropy": entropy,
            "loss/kl": ratio - 1 - (log_prob - piece.log_prob),
            "loss/clipped": (jnp.abs(ratio - 1) > hyper["clip"]).astype(jnp.float32),
        }
        means = masked_means(terms, piece.mask, count)
        value_loss = hyper["value_cost"] * means["loss/value"]
        return means["loss/policy"] + value_loss - hyper["entropy_cost"] * means["loss/entropy"], means

    def update(state: State, params: Params, sample: Sample, key: Key) -> tuple[State, Params, Feedback]:
        hyper = params["settings"]
        step_size = annealed(hyper["learning_rate"], state.updates, total_updates if settings.anneal else 0)
        transform = optimizer(settings.optimizer, step_size, hyper["max_grad_norm"], settings.epsilon)
        pieces = cut(params, hyper, sample)
        n, size = len(pieces.mask), len(pieces.mask) // settings.minibatches
        if not size:
            raise Refused(f"agent.minibatches must be at most {n}, what each device has, got {settings.minibatches}")
        if settings.normalize_advantages and size * pieces.mask.shape[1] * max(devices.count(), 1) < 2:
            raise Refused(
                f"agent.minibatches must be at most {max(n // 2, 1)}, so that each has two steps, got "
                f"{settings.minibatches} of {n} steps: the advantage of one step by itself is normalised to 0; or set "
                "agent.normalize_advantages=false"
            )
        orders = jax.vmap(lambda key: permutation(key, n))(jax.random.split(key, settings.epochs))
        orders = orders[:, : size * settings.minibatches].reshape(-1, size)
        # What minibatches mean over all devices: known before the first step, so devices meet here for all of them.
        mask, advantage = pieces.mask[orders], pieces.advantage[orders]
        count, centre = average((mask.sum((1, 2)), (mask * advantage).sum((1, 2))))
        count = jnp.maximum(count, 1e-8)
        centre /= count
        spread = average((mask * (advantage - centre[:, None, None]) ** 2).sum((1, 2)))
        spread = square_root(spread / count) + 1e-8

        flat, unravel = ravel(params["network"])

        def minibatch(
            carry: tuple[Array, PyTree], xs: tuple[Array, ...]
        ) -> tuple[tuple[Array, PyTree], dict[str, Array]]:
            flat, moments = carry
            indices, count, centre, spread = xs
            weights = unravel(flat)

            def gradient(indices: Array) -> tuple[PyTree, dict[str, Array]]:
                piece = jax.tree.map(lambda x: x[indices], pieces)
                piece = piece._replace(timesteps=see(params, piece.timesteps))
                if settings.normalize_advantages:
                    piece = piece._replace(advantage=(piece.advantage - centre) / spread)
                return jax.grad(loss, has_aux=True)(weights, hyper, piece, count)

            grads, metrics = summed(gradient, indices, fitting(pieces))
            grads = average(ravel(grads)[0])
            steps, moments = transform.update(grads, moments, flat)
            return (flat + steps, moments), metrics | {"loss/grad_norm": global_norm(grads)}  # type: ignore[operator]

        xs = (orders, count, centre, spread)
        (flat, moments), metrics = jax.lax.scan(minibatch, (flat, state.optimizer), xs)
        owned = {"network": unravel(flat)}
        if settings.normalize_observations:
            owned["normalizer"] = update_statistics(net.reads, params["normalizer"], sample.trajectory)
        metrics = average(jax.tree.map(jnp.mean, metrics)) | {"loss/learning_rate": step_size}
        return State(moments, state.updates + 1), owned, Feedback(metrics)

    def cut(params: Params, hyper: dict[str, Array], sample: Sample) -> Piece:
        """The batch as pieces [N, L, ...], with advantages by the values of acting time."""
        memory, timesteps, extras, _ = sample.trajectory
        arrived = jax.tree.map(lambda x: x[:, 1:], timesteps)
        final = jax.tree.map(lambda x: x[:, -1:], timesteps)
        if net.recurrent:
            bootstrap = net.unroll(params["network"], memory, see(params, timesteps))[1][:, -1:]
        else:
            bootstrap = net.unroll(params["network"], memory, see(params, final))[1]
        values = jnp.concatenate([extras["value"], bootstrap], axis=1)
        reward, discount = settings.transform_reward(arrived.reward), hyper["discount"] * arrived.discount
        first = arrived.first()
        advantage = jax.vmap(gae, (0, 0, 0, None, 0))(reward, discount, values, hyper["gae_lambda"], first)
        acted = jax.tree.map(lambda x: x[:, :-1], timesteps)
        target, mask = advantage + extras["value"], (~first).astype(jnp.float32)
        piece = Piece((), acted, extras["sample"], extras["log_prob"], extras["value"], advantage, target, mask)
        if net.recurrent:
            return piece._replace(memory=memory)
        return jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), piece)

    owns = ("network", "normalizer") if settings.normalize_observations else ("network",)
    experience = Experience(length=settings.unroll, batch=settings.batch)
    learner = Learner(owns, ("settings",), experience, learner_init, update)
    return Agent(init, lambda params, rank, key: net.memory(), act, exploit, owns, {"ppo": learner})
