"""DDPG (Lillicrap et al. 2016): a deterministic policy that climbs its critic."""

from dataclasses import dataclass

import jax.numpy as jnp

from boonta.agents import continuous
from boonta.core.agent import Agent
from boonta.core.settings import setting
from boonta.core.spec import Spec
from boonta.core.types import Array, Key, Params, PyTree


@dataclass(frozen=True)
class Settings(continuous.Settings):
    """DDPG's settings."""

    noise: float = setting(
        0.1, "standard deviation of the exploration noise, in units of half the action box", low=0.0, traced=True
    )


def ddpg(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """DDPG for an environment.

    Args:
        spec: the environment's; continuous actions, and observations that are vectors.
        settings: Settings.
        total_updates: nothing depends on it.

    Raises:
        ValueError: discrete actions or images.
    """
    del total_updates
    parts = continuous.parts(spec, settings, critics=1, outputs_per_action=1)
    return continuous.agent(parts, rules(parts))


def rules(parts: continuous.Parts) -> continuous.Rules:
    """How a deterministic policy explores, and what it climbs: the first critic."""

    def policy(weights: PyTree, seen: PyTree) -> Array:
        return jnp.tanh(parts.nets.policy(weights, seen))

    def explore(params: Params, seen: PyTree, noise: Array) -> Array:
        return jnp.clip(policy(params["policy"], seen) + params["settings"]["noise"] * noise, -1.0, 1.0)

    def exploit(params: Params, seen: PyTree) -> Array:
        return policy(params["policy"], seen)

    def bootstrap(params: Params, target_policy: PyTree, seen: PyTree, key: Key) -> continuous.Bootstrap:
        return continuous.Bootstrap(policy(target_policy, seen))

    def objective(moving: Params, params: Params, seen: PyTree, key: Key) -> tuple[Array, dict[str, Array]]:
        """The policy gradient (equation 6) is that of the critic's mean at the policy's actions."""
        value = parts.expected(params["critics"], seen, policy(moving["policy"], seen))[0]
        loss = -jnp.mean(value)
        return loss, {"loss/policy": loss}

    return continuous.Rules(explore, exploit, bootstrap, objective)
