"""SAC (Haarnoja et al. 2018, "Algorithms and Applications"): a stochastic policy that is paid for its entropy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from boonta.agents import continuous
from boonta.core.agent import Agent
from boonta.core.settings import setting
from boonta.core.spec import Spec
from boonta.core.types import Array, Key, Params, PyTree
from boonta.ops.distributions import TanhGaussian


@dataclass(frozen=True)
class Settings(continuous.Settings):
    """SAC's settings."""

    value_learning_rate: float = setting(3e-4, "step size of the critics", above=0.0, traced=True)
    policy_learning_rate: float = setting(3e-4, "step size of policy and temperature", above=0.0, traced=True)
    temperature: float = setting(1.0, "alpha, the price of entropy: the first, or the only one", above=0.0)
    tune_temperature: bool = setting(True, "learn the temperature that keeps the entropy at its target")
    target_entropy: float | None = setting(
        None, "nats of the policy, in units of half the action box; none for minus one for each number of an action"
    )


def sac(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """SAC for an environment.

    Args:
        spec: the environment's; continuous actions, and observations that are vectors.
        settings: Settings.
        total_updates: nothing depends on it.

    Raises:
        ValueError: discrete actions or images.
    """
    del total_updates
    parts = continuous.parts(spec, settings, critics=2, outputs_per_action=2)
    target_entropy = -float(parts.d) if settings.target_entropy is None else settings.target_entropy

    def policy(weights: PyTree, seen: PyTree) -> TanhGaussian:
        mean, log_std = jnp.split(parts.nets.policy(weights, seen), 2, axis=-1)
        return TanhGaussian(mean, jnp.clip(log_std, -20.0, 2.0))

    def drawn(weights: PyTree, seen: PyTree, key: Key) -> tuple[Array, Array]:
        """Actions [B, d] and their log-probabilities [B]."""
        chances = policy(weights, seen)
        sample = chances.sample(key)
        return chances.action(sample), chances.log_prob(sample)

    def explore(params: Params, seen: PyTree, noise: Array) -> Array:
        chances = policy(params["policy"], seen)
        return chances.action(chances.mean + jnp.exp(chances.log_std) * noise)

    def exploit(params: Params, seen: PyTree) -> Array:
        chances = policy(params["policy"], seen)
        return chances.action(chances.mode())

    def bootstrap(params: Params, target_policy: PyTree, seen: PyTree, key: Key) -> continuous.Bootstrap:
        """By the policy as it is (equation 3)."""
        action, log_prob = drawn(params["policy"], seen, key)
        return continuous.Bootstrap(action, jnp.exp(params["log_temperature"]) * log_prob)

    def objective(moving: Params, params: Params, seen: PyTree, key: Key) -> tuple[Array, dict[str, Array]]:
        """The policy's (equation 7) and the temperature's (equation 18)."""
        alpha = jnp.exp(params["log_temperature"])
        action, log_prob = drawn(moving["policy"], seen, key)
        value = jnp.min(parts.expected(params["critics"], seen, action), axis=0)
        loss, entropy = jnp.mean(alpha * log_prob - value), -jnp.mean(log_prob)
        metrics = {"loss/policy": loss, "policy/entropy": entropy, "policy/temperature": alpha}
        if settings.tune_temperature:
            loss += moving["log_temperature"] * jax.lax.stop_gradient(entropy - target_entropy)
        return loss, metrics

    def more() -> Params:
        return {"log_temperature": jnp.log(jnp.float32(settings.temperature))}

    owned = ("policy", "log_temperature")
    return continuous.agent(parts, continuous.Rules(explore, exploit, bootstrap, objective, owned, more))
