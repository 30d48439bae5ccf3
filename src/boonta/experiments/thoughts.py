"""What an agent that plans looked at, move by move, in one greedy episode."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta import envs
from boonta.core import random
from boonta.core.environment import Environment
from boonta.core.faults import closing
from boonta.core.host import Workers
from boonta.core.types import LAST
from boonta.envs.served import serve
from boonta.experiments import evaluation
from boonta.experiments.runs import Run
from boonta.ops.search import Found


class Thought(NamedTuple):
    """One move.

    Attributes:
        frame: uint8 [H, W, 3] of the position, None where it cannot be drawn.
        found: what the search found, arrays of the host.
        legal: bool [A].
        outcome: what came of it, to whoever moved: the return without discounting.
    """

    frame: np.ndarray | None
    found: Found
    legal: np.ndarray
    outcome: float


def think(run: Run, seed: int, steps: int) -> list[Thought]:
    """One greedy episode, of at most so many steps.

    Raises:
        ValueError: an agent that does not plan.
    """
    config, agent, params = run.config, run.system.agent, run.params
    made = envs.make(config.env, **config.env_settings)
    host = serve(made) if isinstance(made, Environment) else made.examiner or made
    exploit = jax.jit(agent.exploit)
    key = random.key(evaluation.SEED)
    memory = agent.memory(params, jnp.float32(0.0), key)
    seen: list[tuple[Any, Found, np.ndarray]] = []
    rewards: list[tuple[float, float]] = []  # and discounts
    with closing((host.drawn() if host.drawn else host).make(np.arange(1), seed, 0, Workers("serial", 1))) as batch:
        timestep = batch.reset()
        for step in range(steps):
            one = jax.tree.map(lambda x: x[0], timestep)
            memory, action, extras = exploit(params, memory, one, jax.random.fold_in(key, step))
            if "tree" not in extras:
                raise ValueError(f"--tree is for agents that plan, and {config.agent} does not")
            found = jax.device_get(Found(**extras))
            legal = _legal(one.observation, len(found.policy))
            seen.append((_frame(batch), found, legal))
            timestep = batch.step(np.asarray(action)[None])
            rewards.append((float(timestep.reward[0]), float(timestep.discount[0])))
            if timestep.step_type[0] == LAST:
                break
    outcomes, after = [], 0.0
    for reward, discount in reversed(rewards):
        after = reward + discount * after
        outcomes.append(after)
    return [Thought(*one, outcome) for one, outcome in zip(seen, reversed(outcomes), strict=True)]


def _frame(batch: Any) -> np.ndarray | None:
    try:
        return np.array(batch.frame())
    except ValueError:
        return None


def _legal(observation: Any, actions: int) -> np.ndarray:
    known = np.asarray(observation["legal"]) if isinstance(observation, dict) and "legal" in observation else ()
    return np.concatenate([known, np.ones(actions - len(known), bool)]).astype(bool)
