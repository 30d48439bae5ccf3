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
    passes: Array | bool = False,
) -> TimeStep:
    """A time step after an action.

    Args:
        observation: what is seen now.
        action: that led here.
        reward: of whoever acted.
        terminated: bool [], a true end.
        truncated: bool [], a time limit.
        passes: bool [], whether the turn passes to the opponent of a zero-sum game.
    """
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    goes_on = jnp.where(passes, -1.0, 1.0)
    return TimeStep(
        observation=observation,
        action=action,
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.where(terminated, 0.0, goes_on).astype(jnp.float32),
        step_type=jnp.where(terminated | truncated, LAST, MID),
    )


def modelled(environment: Environment) -> Environment:
    """The same environment for agents that plan with it: observations hold its state, the spec its `step`.

    The state is shown as a tuple of its arrays, whatever it is made of: that can be stored and sent.

    Raises:
        Refused: random keys are part of its state, which cannot be stored or sent.
    """
    spec = environment.spec

    def shown(state: PyTree, timestep: TimeStep) -> tuple[PyTree, TimeStep]:
        seen = timestep.observation
        named = seen if isinstance(seen, dict) else {"observation": seen}
        return state, timestep._replace(observation=named | {"state": tuple(jax.tree.leaves(state))})

    def reset(key: Key) -> tuple[PyTree, TimeStep]:
        return shown(*environment.reset(key))

    def step(state: PyTree, action: Action, key: Key) -> tuple[PyTree, TimeStep]:
        return shown(*environment.step(state, action, key))

    def model(shown: tuple[Array, ...], action: Action, key: Key) -> tuple[tuple[Array, ...], TimeStep]:
        state, timestep = environment.step(jax.tree.unflatten(structure, shown), action, key)
        return tuple(jax.tree.leaves(state)), timestep

    state, timestep = jax.eval_shape(reset, jax.eval_shape(jax.random.key, 0))
    structure, observation = jax.tree.structure(state), timestep.observation
    if any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(observation)):
        raise Refused(f"{spec.name} has random keys in its state, so agents cannot plan with it (env.model)")
    spec = spec._replace(observation=observation, model=model)
    return Environment(spec, reset, step, environment.render)


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
