"""TD3 (Fujimoto et al. 2018): DDPG with two critics, a smoothed target policy, and delayed policy and targets."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from boonta.agents import continuous, ddpg
from boonta.core.agent import Agent
from boonta.core.settings import setting
from boonta.core.spec import Spec
from boonta.core.types import Key, Params, PyTree


@dataclass(frozen=True)
class Settings(ddpg.Settings):
    """TD3's settings."""

    target_rate: float = setting(
        0.005,
        "share of the way that target networks go when the policy is due an update",
        above=0.0,
        high=1.0,
        traced=True,
    )
    policy_updates: float = setting(0.5, "updates of the policy for each step of an environment", low=0.001)
    target_noise: float = setting(
        0.2, "standard deviation of noise in the target policy's actions, likewise", low=0.0, traced=True
    )
    target_noise_clip: float = setting(0.5, "limit of that noise", low=0.0, traced=True)


def td3(spec: Spec, settings: Settings, total_updates: int = 0) -> Agent:
    """TD3 for an environment.

    Args:
        spec: the environment's; continuous actions, and observations that are vectors.
        settings: Settings.
        total_updates: nothing depends on it.

    Raises:
        ValueError: discrete actions or images.
    """
    del total_updates
    parts = continuous.parts(spec, settings, critics=2, outputs_per_action=1)
    rules = ddpg.rules(parts)

    def bootstrap(params: Params, target_policy: PyTree, seen: PyTree, key: Key) -> continuous.Bootstrap:
        """Similar actions are to have similar values (section 5.3)."""
        hyper, action = params["settings"], rules.exploit({"policy": target_policy}, seen)
        limit = hyper["target_noise_clip"]
        noise = jnp.clip(hyper["target_noise"] * jax.random.normal(key, action.shape, action.dtype), -limit, limit)
        return continuous.Bootstrap(jnp.clip(action + noise, -1.0, 1.0))

    return continuous.agent(parts, rules._replace(bootstrap=bootstrap, delay_targets=True))
