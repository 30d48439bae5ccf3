"""What ddpg, td3 and sac share: settings, exploration, and the two learners of value and policy.

The value learner owns the critics and keeps the target networks; the policy learner owns the policy and whatever else
acting reads, and needs nothing but observations. They learn from one replay. So parameters flow from policy to actors,
from policy to value, and from value to policy, wherever each of them runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from boonta.agents.common import CLIPPED, RewardSettings, init_statistics, normalize_observation, update_statistics
from boonta.agents.values import normalized_weights
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.devices import average
from boonta.core.settings import setting, traced
from boonta.core.spec import Spec
from boonta.core.types import Action, Array, Extras, Feedback, Key, Memory, Params, PyTree, Sample, TimeStep, Trajectory
from boonta.nets.policy_and_critics import PolicyAndCritics, Shape, policy_and_critics
from boonta.nets.torso import Activation
from boonta.ops.optimizers import Optimizer, optimizer
from boonta.ops.returns import n_step_target
from boonta.ops.value_head import Kind, ValueHead, value_head


@dataclass(frozen=True)
class Settings(RewardSettings):
    """The settings that all three have."""

    hidden: tuple[int, ...] = setting((256, 256), "widths of the dense layers of the policy and of each critic", low=1)
    activation: Activation = setting("relu", "of the dense layers: tanh, relu, silu, gelu or elu")
    layer_norm: bool = setting(False, "normalise the layers of the critics")
    critic: Kind = setting(
        "mean", "what critics say of returns: their mean, or a distribution, categorical or quantile"
    )
    bins: int = setting(51, "atoms of a distribution", low=2)
    value_low: float = setting(-10.0, "the lowest return that a categorical critic can say")
    value_high: float = setting(10.0, "the highest")
    normalize_observations: bool = setting(False, "give observations mean 0 and variance 1 by running statistics")
    value_learning_rate: float = setting(1e-3, "step size of the critics", above=0.0, traced=True)
    policy_learning_rate: float = setting(1e-3, "step size of the policy", above=0.0, traced=True)
    value_optimizer: Optimizer = setting("adam", "of the critics: adam, rmsprop or sgd")
    policy_optimizer: Optimizer = setting("adam", "of the policy: adam, rmsprop or sgd")
    epsilon: float = setting(1e-8, "epsilon of adam and rmsprop", above=0.0)
    max_grad_norm: float | None = setting(
        None,
        "global norm that gradients are clipped to; none, which is faster, or 0 for no clipping",
        low=0.0,
        traced=True,
    )
    discount: float = setting(0.99, "gamma", low=0.0, high=1.0, traced=True)
    n_step: int = setting(1, "steps before bootstrapping", low=1)
    target_rate: float = setting(
        0.005, "share of the way that target networks go in an update of the critics", above=0.0, high=1.0, traced=True
    )
    noise_correlation: float = setting(
        0.0, "correlation of the exploration noise of neighbouring steps; above 0 it lasts", low=0.0, high=0.9999
    )
    unroll: int = setting(1, "steps acted between looks at the replay", low=1)
    value_batch: int = setting(256, "transitions in one update of the critics over all devices", low=1)
    policy_batch: int = setting(256, "observations in one update of the policy over all devices", low=1)
    value_updates: float = setting(
        1.0, "updates of the critics for each step of an environment; to the policy's as small whole numbers", low=0.001
    )
    policy_updates: float = setting(1.0, "updates of the policy for each step of an environment", low=0.001)
    capacity: int = setting(100_000, "transitions that replay keeps", low=1)
    minimum: int = setting(1000, "transitions in replay before learning starts; until then actions are random", low=1)
    sampler: Literal["uniform", "prioritized", "ranked"] = setting("uniform", "how replay draws")
    priority_exponent: float = setting(0.6, "alpha of prioritized replay", low=0.0, high=1.0)
    importance_exponent: float = setting(0.4, "beta, of the weights that make up for it", low=0.0, high=1.0)


class Parts(NamedTuple):
    """What an agent's page builds on.

    Attributes:
        spec: the environment's.
        settings: Settings, or those of one of the three.
        nets: the networks; observations go through `see` first.
        head: what the critics say.
        d: numbers in an action.
    """

    spec: Spec
    settings: Any
    nets: PolicyAndCritics
    head: ValueHead
    d: int

    def see(self, params: Params, timesteps: TimeStep) -> PyTree:
        """Observations as the networks see them."""
        if self.settings.normalize_observations:
            timesteps = normalize_observation(self.nets.reads, params["normalizer"], timesteps)
        return timesteps.observation

    def expected(self, critics: PyTree, seen: PyTree, unit: Array) -> Array:
        """float32 [C, B], of actions [B, d] in units of half the box."""
        return self.head.mean(self.nets.critics(critics, seen, unit))


def parts(spec: Spec, settings: Settings, critics: int, outputs_per_action: int) -> Parts:
    """The networks of an agent.

    Args:
        spec: the environment's.
        settings: Settings.
        critics: how many.
        outputs_per_action: numbers that the policy says for each number of an action.

    Raises:
        ValueError: discrete actions or images; returns of a categorical critic that are in no order.
    """
    if settings.critic == "categorical" and settings.value_low >= settings.value_high:
        raise ValueError(
            f"agent.value_low must be below agent.value_high, got {settings.value_low:g} and {settings.value_high:g}"
        )
    shape = Shape(settings.hidden, settings.activation, settings.layer_norm)
    head = value_head(settings.critic, settings.bins, settings.value_low, settings.value_high)
    d = int(np.prod(spec.action.shape)) if hasattr(spec.action, "shape") else 0  # type: ignore[union-attr]
    nets = policy_and_critics(spec, shape, outputs_per_action * d, critics, head.outputs)
    return Parts(spec, settings, nets, head, d)


class Bootstrap(NamedTuple):
    """What the value learner's targets end in.

    Attributes:
        action: float32 [B, d], the next actions, in units of half the box.
        cost: float32 [B], taken off their values: SAC's temperature times log-probability; 0 elsewhere.
    """

    action: Array
    cost: Array | float = 0.0


class Rules(NamedTuple):
    """What tells the three apart.

    Attributes:
        explore: (params, seen [1, ...], noise [1, d] of deviation 1) -> action [1, d], in units of half the box.
        exploit: (params, seen [1, ...]) -> likewise.
        bootstrap: (params, the target policy, seen [B, ...], key) -> Bootstrap. Consumes the key.
        objective: (owned parameters, params, seen [B, ...], key) -> (loss float32 [], metrics). Consumes the key.
        owned: the groups that the policy's gradient moves; "policy" among them.
        more: groups besides the policy and what all three have.
        delay_targets: whether target networks move only when the policy is due an update, not with each of the critics.
    """

    explore: Callable[[Params, PyTree, Array], Array]
    exploit: Callable[[Params, PyTree], Array]
    bootstrap: Callable[[Params, PyTree, PyTree, Key], Bootstrap]
    objective: Callable[[Params, Params, PyTree, Key], tuple[Array, dict[str, Array]]]
    owned: tuple[str, ...] = ("policy",)
    more: Callable[[], Params] = dict
    delay_targets: bool = False


class ValueState(NamedTuple):
    """The critics' optimiser and the target networks."""

    optimizer: optax.OptState
    critics: PyTree
    policy: PyTree


class CountingState(NamedTuple):
    """Of rules that delay targets: besides, the updates made (int32 [])."""

    optimizer: optax.OptState
    critics: PyTree
    policy: PyTree
    updates: jax.Array


def agent(parts: Parts, rules: Rules) -> Agent:
    """An agent of two learners, `value` and `policy`."""
    spec, settings, nets = parts.spec, parts.settings, parts.nets
    normalizing = settings.normalize_observations
    keep = settings.noise_correlation
    acting_groups = (*rules.owned, "begun", *(["normalizer"] if normalizing else []))

    def init(key: Key) -> Params:
        policy_key, critics_key = jax.random.split(key)
        params = {"policy": nets.policy_init(policy_key), "critics": nets.critics_init(critics_key), **rules.more()}
        if normalizing:
            params["normalizer"] = init_statistics(nets.reads)
        begun = jnp.float32(0.0)  # 1 once the policy has learned
        return params | {"begun": begun, "settings": jax.tree.map(jnp.float32, traced(settings))}

    def memory(params: Params, rank: Array, key: Key) -> Memory:
        return jnp.zeros(parts.d, jnp.float32) if keep else ()

    def act(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Action, Extras]:
        noise_key, random_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (parts.d,), jnp.float32)
        if keep:  # a walk that forgets: Ornstein-Uhlenbeck's, at unit variance from the first step on
            walk = keep * memory + jnp.sqrt(1.0 - keep**2) * noise
            memory = noise = jnp.where(timestep.first(), noise, walk)
        chosen = rules.explore(params, _one(parts.see(params, timestep)), noise[None])[0]
        anything = jax.random.uniform(random_key, (parts.d,), jnp.float32, -1.0, 1.0)
        unit = jnp.where(params["begun"] > 0, chosen, anything)
        return memory, spec.action.scale(unit), {}  # type: ignore[union-attr]

    def exploit(params: Params, memory: Memory, timestep: TimeStep, key: Key) -> tuple[Memory, Action, Extras]:
        unit = rules.exploit(params, _one(parts.see(params, timestep)))[0]
        return memory, spec.action.scale(unit), {}  # type: ignore[union-attr]

    learners = {"value": _value(parts, rules, acting_groups), "policy": _policy(parts, rules, acting_groups)}
    return Agent(init, memory, act, exploit, (*acting_groups, "settings"), learners)


def _value(parts: Parts, rules: Rules, policy_groups: tuple[str, ...]) -> Learner:
    settings, nets, head = parts.settings, parts.nets, parts.head

    def transform(hyper: dict[str, Array] | None = None) -> optax.GradientTransformation:
        rate, limit = (hyper["value_learning_rate"], hyper.get("max_grad_norm")) if hyper else (0.0, None)
        return optimizer(settings.value_optimizer, rate, limit, settings.epsilon)

    def init(params: Params) -> ValueState | CountingState:
        critics, policy = jax.tree.map(jnp.copy, (params["critics"], params["policy"]))
        state = ValueState(transform().init(critics), critics, policy)
        return CountingState(*state, jnp.int32(0)) if rules.delay_targets else state

    def loss(critics: PyTree, seen: PyTree, action: Array, atoms: Array, probabilities: Array, scale: Array) -> Any:
        outputs = nets.critics(critics, seen, action)  # [C, B, O]
        losses = jax.vmap(jax.vmap(head.loss), (0, None, None))(outputs, atoms, probabilities)
        return jnp.mean(jnp.sum(losses, axis=0) * scale), (losses, head.mean(outputs))

    def update(
        state: ValueState | CountingState, params: Params, sample: Sample, key: Key
    ) -> tuple[ValueState | CountingState, Params, Feedback]:
        hyper, timesteps = params["settings"], sample.trajectory.timesteps
        arrived = jax.tree.map(lambda x: x[:, 1:], timesteps)
        reward, discount = settings.transform_reward(arrived.reward), hyper["discount"] * arrived.discount
        total, beyond, at = jax.vmap(n_step_target)(reward, discount, arrived.first())
        end = jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, at), timesteps)
        seen = parts.see(params, end)
        bootstrap = rules.bootstrap(params, state.policy, seen, key)
        atoms, probabilities = _lowest(head, nets.critics(state.critics, seen, bootstrap.action))
        later = atoms - jnp.broadcast_to(bootstrap.cost, atoms.shape[:1])[:, None]
        target = total[:, None] + beyond[:, None] * later
        # From LAST to FIRST nothing was done, and nothing is to be learned.
        mask = (~arrived.first()[:, 0]).astype(jnp.float32)
        scale = mask * normalized_weights(sample.weights)
        now = parts.see(params, jax.tree.map(lambda x: x[:, 0], timesteps))
        action = parts.spec.action.unit(arrived.action[:, 0])  # type: ignore[union-attr]
        grads, (losses, values) = jax.grad(loss, has_aux=True)(
            params["critics"], now, action, target, probabilities, scale
        )
        wanted = jnp.sum(target * probabilities, axis=-1)
        error = mask * jnp.mean(jnp.abs(values - wanted), axis=0)
        share = jnp.maximum(jnp.mean(mask), 1e-8)
        mean = jnp.mean(losses * mask) / share
        metrics = {
            "loss/value": mean,
            "loss/value_variance": jnp.mean((losses - mean) ** 2 * mask) / share,
            "value/mean": jnp.mean(values * mask) / share,
            "value/target": jnp.mean(wanted * mask) / share,
        }
        if settings.critic == "categorical":
            beyond = (target < settings.value_low) | (target > settings.value_high)
            metrics[CLIPPED] = jnp.mean(jnp.sum(beyond * probabilities, axis=-1) * mask) / share
        # Processes that share a batch may have read policies of different versions; what they keep of them is one.
        grads, metrics, policy = average((grads, metrics, params["policy"]))
        steps, moments = transform(hyper).update(grads, state.optimizer)
        critics = optax.apply_updates(params["critics"], steps)
        rate, count = hyper["target_rate"], None
        if isinstance(state, CountingState):
            count = updates = state.updates + 1
            rate *= updates % every.numerator * every.denominator % every.numerator < every.denominator
        both = (state.critics, state.policy), (critics, policy)
        targets = jax.tree.map(lambda old, new: old + rate * (new - old), *both)
        feedback = Feedback(metrics, error if prioritized else None)
        made = ValueState(moments, *targets)
        return made if count is None else CountingState(*made, count), {"critics": critics}, feedback

    prioritized = settings.sampler != "uniform"
    # The value learner counts its own updates, as where learners are processes it does not see the policy's.
    every = max(Fraction(settings.value_updates / settings.policy_updates), Fraction(1)).limit_denominator(1000)
    experience = _experience(settings, settings.value_batch, settings.value_updates)
    return Learner(("critics",), (*policy_groups, "settings"), experience, init, update)


def _policy(parts: Parts, rules: Rules, groups: tuple[str, ...]) -> Learner:
    settings = parts.settings

    def transform(hyper: dict[str, Array] | None = None) -> optax.GradientTransformation:
        rate, limit = (hyper["policy_learning_rate"], hyper.get("max_grad_norm")) if hyper else (0.0, None)
        return optimizer(settings.policy_optimizer, rate, limit, settings.epsilon)

    def init(params: Params) -> optax.OptState:
        return transform().init({name: params[name] for name in rules.owned})

    def update(
        state: optax.OptState, params: Params, sample: Sample, key: Key
    ) -> tuple[optax.OptState, Params, Feedback]:
        # Observations are all there is, so those of an episode's end are learned from like any other that is drawn.
        hyper, timesteps = params["settings"], sample.trajectory.timesteps
        first = timesteps._replace(observation=jax.tree.map(lambda x: x[:, 0], timesteps.observation))
        moving = {name: params[name] for name in rules.owned}
        seen = parts.see(params, first)
        grads, metrics = jax.grad(rules.objective, has_aux=True)(moving, params, seen, key)
        grads, metrics = average((grads, metrics))
        steps, moments = transform(hyper).update(grads, state)
        owned = optax.apply_updates(moving, steps) | {"begun": jnp.float32(1.0)}  # type: ignore[operator]
        if settings.normalize_observations:
            owned["normalizer"] = update_statistics(parts.nets.reads, params["normalizer"], sample.trajectory)
        return moments, owned, Feedback(metrics)

    experience = _experience(settings, settings.policy_batch, settings.policy_updates)
    experience = experience._replace(trained_step=None, view=only_observations)
    return Learner(groups, ("critics", "settings"), experience, init, update)


def only_observations(trajectory: Trajectory) -> Trajectory:
    """A trajectory of nothing but observations, with or without leading axes."""
    seen = trajectory.timesteps._replace(action=(), reward=(), discount=(), step_type=())  # type: ignore[arg-type]
    return trajectory._replace(memory=(), timesteps=seen, extras=())


def _experience(settings: Settings, batch: int, updates: float) -> Experience:
    return Experience(
        length=settings.n_step,
        batch=batch,
        period=1,
        unroll=settings.unroll,
        minimum=settings.minimum,
        capacity=settings.capacity,
        sampler=settings.sampler,
        samples_per_insert=updates * batch,
        priority_exponent=settings.priority_exponent,
        importance_exponent=settings.importance_exponent,
        memory=False,
        trained_step=0,
    )


def _lowest(head: ValueHead, outputs: Array) -> tuple[Array, Array]:
    """Atoms and probabilities [B, K] of the critic [C, B, O] that expects least (Fujimoto et al. 2018)."""
    which = jnp.argmin(head.mean(outputs), axis=0)
    lowest = jnp.take_along_axis(outputs, which[None, :, None], axis=0)[0]
    return head.atoms(lowest)


def _one(seen: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], seen)
