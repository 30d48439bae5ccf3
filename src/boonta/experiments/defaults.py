"""What a run has where no recipe and nobody says otherwise: by its agent, where its environments step, and its length.

The defaults of the settings themselves stay what they are: recipes, and agents made in Python, build on them.
"""

from collections.abc import Mapping
from typing import Any

FEW, FEW_GRADIENTS = 100, 1000  # updates and gradient steps; hardly anything is learned in fewer of both


def defaults(agent: str, architecture: str, steps: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the agent and of the architecture, by table.

    Args:
        agent: its name; of an agent of the user's own nothing is known.
        architecture: its name. On Anakin environments are compiled, and as many as one likes; elsewhere they step on
            the host, where each costs.
        steps: environment steps of the run.
        given: settings of the agent that are said; some defaults follow from them.
    """
    compiled = architecture == "anakin"
    if agent == "ppo":
        return {"agent": _ppo_compiled(steps, given) if compiled else _ppo(steps, given)}
    if compiled:
        return {}
    if agent == "dqn":
        return {"agent": DQN, "architecture": {"envs": 4} if architecture == "sebulba" else {}}
    if agent in ("ddpg", "td3", "sac") and architecture == "sebulba":
        return {"agent": {"unroll": 4, "minimum": 500}, "architecture": {"envs": 1}}
    return {}


# One update for each step of an environment, over a replay that keeps all of a short run.
DQN = {
    "hidden": [128, 128],
    "batch": 64,
    "replay_ratio": 64.0,
    "learning_rate": 5e-4,
    "sampler": "uniform",
    "target_interval": 1000,
    "explore_for": 0.2,
}


def _ppo(steps: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Few environments: long unrolls, and ten passes over each batch in minibatches of about 64 steps.

    The step size stays. Entropy counts where actions are discrete: it helps on LunarLander and harms on HalfCheetah.
    """
    batch = _whole(given, "batch", 8)
    unroll = _whole(given, "unroll", _power(steps / (FEW * batch), 32, 256))
    return {
        "batch": batch,
        "unroll": unroll,
        "epochs": 10,
        "minibatches": _power(min(batch * unroll / 64, _pieces(given, batch, unroll)), 1, 256),
        "learning_rate": 3e-4,
        "anneal": False,
        "entropy_cost": None,
    }


def _ppo_compiled(steps: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """As many environments as leave enough updates, and large steps in large minibatches."""
    unroll = _whole(given, "unroll", 128)
    batch = _whole(given, "batch", _power(steps / (FEW * unroll), 8, 2048))
    return {
        "batch": batch,
        "unroll": unroll,
        "minibatches": _power(_pieces(given, batch, unroll), 1, 8),
        "learning_rate": 5e-3,
    }


def _pieces(given: Mapping[str, Any], batch: int, unroll: int) -> int:
    """What minibatches are made of: steps, or where there is memory whole trajectories."""
    return batch * unroll if str(given.get("core", "none")) == "none" else batch


def _whole(given: Mapping[str, Any], key: str, default: int) -> int:
    """What is said, where that is a number; what is wrong with it is said elsewhere."""
    try:
        return max(int(float(given.get(key, default))), 1)
    except (TypeError, ValueError, OverflowError):
        return default


def _power(number: float, low: int, high: int) -> int:
    """The largest power of two that is not above a number, from `low` to `high`."""
    power = low
    while power * 2 <= min(number, high):
        power *= 2
    return power
