"""Environments as pairs of pure functions, and the words to write one with."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.settings import Refused
from boonta.core.spec import Continuous, Discrete, Spec
from boonta.core.trees import select
from boonta.core.types import FIRST, LAST, MID, Action, Array, Key, PyTree, TimeStep


class Environment(NamedTuple):
    """One environment: vmap it for many.

    Attributes:
        spec: Spec.
        reset: key -> (state, TimeStep), the time step being FIRST. Consumes the key.
        step: (state, action, key) -> (state, TimeStep), MID or LAST. Never called after LAST. Consumes the key.
        render: state -> uint8 [H, W, 3], or None if it cannot be drawn.
    """

    spec: Spec
    reset: Callable[[Key], tuple[PyTree, TimeStep]]
    step: Callable[[PyTree, Action, Key], tuple[PyTree, TimeStep]]
    render: Callable[[PyTree], np.ndarray] | None = None


def start(observation: PyTree, action_spec: Discrete | Continuous) -> TimeStep:
    """The FIRST time step of an episode."""
    return TimeStep(
        observation=observation,
        action=action_spec.zero(),
        reward=jnp.zeros((), jnp.float32),
        discount=jnp.ones((), jnp.float32),
        step_type=jnp.asarray(FIRST),
    )


def proceed(
    observation: PyTree,
    action: Action,
    reward: Array | float,
    terminated: Array | bool,
    truncated: Array | bool = False,
) -> TimeStep:
    """A time step after an action. `terminated` is a true end, `truncated` a time limit; both are bool scalars."""
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    return TimeStep(
        observation=observation,
        action=action,
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.where(terminated, 0.0, 1.0).astype(jnp.float32),
        step_type=jnp.where(terminated | truncated, LAST, MID),
    )


def check(environment: Environment) -> None:
    """Hold an environment's observations to its spec, without running it.

    Raises:
        Refused: a shape or a dtype that is not the spec's; the message names it.
    """
    spec = environment.spec
    key = jax.eval_shape(jax.random.key, 0)
    state, first = jax.eval_shape(environment.reset, key)
    action = jax.eval_shape(spec.action.zero)
    _, later = jax.eval_shape(environment.step, state, action, key)
    for which, timestep in (("reset", first), ("step", later)):
        got, wanted = (jax.tree.map(_words, tree) for tree in (timestep.observation, spec.observation))
        if got != wanted:
            raise Refused(f"{spec.name}: {which} returns the observation {got}, but its spec says {wanted}")


def _words(x: jax.ShapeDtypeStruct) -> str:
    return f"{np.dtype(x.dtype).name}{list(x.shape)}"


def advance(
    environment: Environment, state: PyTree, timestep: TimeStep, action: Action, key: Key
) -> tuple[PyTree, TimeStep]:
    """Step, or start the next episode if `timestep` is LAST: the final observation is never lost.

    After LAST the action is ignored and the answer is FIRST. Consumes the key.
    """
    reset_key, step_key = jax.random.split(key)
    stepped = environment.step(state, action, step_key)
    fresh = environment.reset(reset_key)
    return select(timestep.last(), fresh, stepped)
