"""Action values on a torso, with dueling heads or without."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.spec import Discrete, Spec
from boonta.core.types import Array, Key, Memory, PyTree, TimeStep
from boonta.nets.dense import Dense
from boonta.nets.torso import Options, torso


class Heads(NamedTuple):
    """What a Q-network has besides its torso; the agents' settings of the same names say what each is."""

    dueling: bool = True
    head: int = 0


PLAIN, DUELING = Options(), Heads()


class QNetwork(NamedTuple):
    """The network as pure functions.

    Attributes:
        init: key -> params.
        memory: () -> the memory of one environment before its first step; () if it has none.
        step: (params, memory, timestep) -> (memory, float32 [A]), for ONE environment.
        unroll: (params, memory [N], timesteps [N, L]) -> (memory [N] after them, float32 [N, L, A]).
    """

    init: Callable[[Key], PyTree]
    memory: Callable[[], Memory]
    step: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]
    unroll: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]


def q_network(spec: Spec, options: Options = PLAIN, heads: Heads = DUELING) -> QNetwork:
    """The network for an environment with discrete actions.

    Raises:
        ValueError: other actions; as `torso`.
    """
    if not isinstance(spec.action, Discrete):
        raise ValueError(f"{spec.name} has continuous actions; values of actions need discrete ones")
    count, trunk = spec.action.n, torso(spec, options)
    outputs = {"advantage": count} | ({"value": 1} if heads.dueling else {})
    streams = {name: _Head(heads.head, n, options) for name, n in outputs.items()}

    def init(key: Key) -> PyTree:
        body, core, *keys = jax.random.split(key, 2 + len(streams))
        x = jnp.zeros((1, trunk.width), jnp.float32)
        made = {name: head.init(key, x) for (name, head), key in zip(streams.items(), keys, strict=True)}
        return trunk.init(body, core) | made

    def read(params: PyTree, x: Array) -> Array:
        out: dict[str, Any] = {name: head.apply(params[name], x) for name, head in streams.items()}
        advantage = out["advantage"]
        if not heads.dueling:
            return advantage
        return out["value"] + advantage - jnp.mean(advantage, -1, keepdims=True)  # Wang et al. 2016, eq. 9

    def step(params: PyTree, memory: Memory, timestep: TimeStep) -> tuple[Memory, Array]:
        memory, x = trunk.step(params, memory, timestep)
        return memory, read(params, x)[0]

    def unroll(params: PyTree, memory: Memory, timesteps: TimeStep) -> tuple[Memory, Array]:
        memory, x = trunk.unroll(params, memory, timesteps)
        return memory, read(params, x)

    return QNetwork(init, trunk.memory, step, unroll)


class _Head(nn.Module):
    """A layer of `width` units, none for 0, and a linear one."""

    width: int
    outputs: int
    options: Options

    @nn.compact
    def __call__(self, x: Array) -> Array:
        if self.width:
            x = nn.relu(Dense(self.width, self.options.initial)(x))
        return Dense(self.outputs, self.options.initial, 0.01)(x)
