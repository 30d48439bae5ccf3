"""A policy over continuous actions, and critics that look at an action beside what was seen."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.spec import Continuous, Spec
from boonta.core.types import Array, Key, PyTree
from boonta.nets.dense import Dense
from boonta.nets.inputs import Inputs, inputs
from boonta.nets.mlp import MLP
from boonta.ops.product import kept


class PolicyAndCritics(NamedTuple):
    """Pure functions of batches.

    Attributes:
        policy_init: key -> params.
        policy: (params, observations [B, ...]) -> float32 [B, outputs], not squashed.
        critics_init: key -> params, of all critics.
        critics: (params, observations [B, ...], actions [B, d] in units of half the box) -> float32 [C, B, O].
        reads: what they read of observations, which may be `Normalized`.
    """

    policy_init: Callable[[Key], PyTree]
    policy: Callable[[PyTree, PyTree], Array]
    critics_init: Callable[[Key], PyTree]
    critics: Callable[[PyTree, PyTree, Array], Array]
    reads: Inputs


class Shape(NamedTuple):
    """The networks' sizes; the agents' settings of the same names say what each is."""

    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    layer_norm: bool = False


def policy_and_critics(spec: Spec, shape: Shape, policy_outputs: int, critics: int, outputs: int) -> PolicyAndCritics:
    """The networks for an environment.

    Args:
        spec: the environment's; continuous actions, and observations that are vectors.
        shape: Shape; normalised layers are the critics'.
        policy_outputs: of the policy.
        critics: C.
        outputs: O, of each critic.

    Raises:
        ValueError: discrete actions, images, or no widths.
    """
    if not isinstance(spec.action, Continuous):
        raise ValueError(f"{spec.name} has discrete actions, and this agent needs continuous ones; use dqn or ppo")
    if not shape.hidden:
        raise ValueError("agent.hidden must name at least one width, got none")
    reads = inputs(spec)
    if any(len(leaf.shape) > 1 for leaf in reads.leaves):
        shapes = [leaf.stored for leaf in reads.leaves]
        raise ValueError(f"{spec.name} is seen as images, and this agent needs vectors, got shapes {shapes}; use ppo")
    reads.only_vectors("this agent", spec)
    width = sum(int(np.prod(leaf.shape)) for leaf in reads.leaves)
    d = int(np.prod(spec.action.shape))
    policy = _Tower(shape.hidden, shape.activation, False, policy_outputs, 0.01)
    critic = _Tower(shape.hidden, shape.activation, shape.layer_norm, outputs, 1.0)

    def critics_init(key: Key) -> PyTree:
        keys = jax.random.split(key, critics)
        return {f"critic_{i}": critic.init(keys[i], jnp.zeros((1, width + d), jnp.float32)) for i in range(critics)}

    def flat(observation: PyTree) -> Array:
        rows = jax.tree.leaves(reads.raw(observation))[0].shape[:1]
        return reads.vector(observation, rows)

    def judge(params: PyTree, observation: PyTree, action: Array) -> Array:
        # Without the barrier XLA takes the actions' derivative from the product as sums of rows, which are slow.
        x = kept(jnp.concatenate([flat(observation), action], axis=-1))
        # One product after the other: a batched one is slower on a CPU.
        return jnp.stack([critic.apply(params[f"critic_{i}"], x) for i in range(critics)])  # type: ignore[arg-type]

    return PolicyAndCritics(
        lambda key: policy.init(key, jnp.zeros((1, width), jnp.float32)),
        lambda params, observation: policy.apply(params, flat(observation)),  # type: ignore[arg-type]
        critics_init,
        judge,
        reads,
    )


class _Tower(nn.Module):
    hidden: tuple[int, ...]
    activation: str
    layer_norm: bool
    outputs: int
    gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = MLP(self.hidden, self.activation, layer_norm=self.layer_norm)(x)
        return Dense(self.outputs, gain=self.gain)(x)
