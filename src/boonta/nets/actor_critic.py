"""A policy and a value on a torso, or on one each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.spec import Discrete, Spec
from boonta.core.types import Array, Key, Memory, PyTree, TimeStep
from boonta.nets.dense import Dense
from boonta.nets.inputs import Inputs, legal
from boonta.nets.torso import Options, torso
from boonta.ops.distributions import Categorical, Gaussian, TanhGaussian


class Heads(NamedTuple):
    """What an actor-critic has besides its torso; the agents' settings of the same names say what each is."""

    share: bool = False
    squash: bool = False
    log_std: float = 0.0


PLAIN, APART = Options(), Heads()


class ActorCritic(NamedTuple):
    """The network as pure functions.

    Attributes:
        init: key -> params.
        memory: () -> the memory of one environment before its first step; () if it has none.
        step: (params, memory, timestep) -> (memory, policy, value), for ONE environment.
        action: (policy, sample) -> the environment's action.
        unroll: (params, memory [N], timesteps [N, L]) -> (policy [N, L], value [N, L]).
        recurrent: whether it has memory.
        reads: what it reads of observations, which may be `Normalized`.
    """

    init: Callable[[Key], PyTree]
    memory: Callable[[], Memory]
    step: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Any, Array]]
    action: Callable[[Any, Array], Array]
    unroll: Callable[[PyTree, Memory, TimeStep], tuple[Any, Array]]
    recurrent: bool
    reads: Inputs


def actor_critic(spec: Spec, options: Options = PLAIN, heads: Heads = APART) -> ActorCritic:
    """The network for an environment.

    Raises:
        ValueError: as `torso`.
    """
    outputs = spec.action.n if isinstance(spec.action, Discrete) else int(np.prod(spec.action.shape))
    policy_head = Dense(outputs, gain=0.01)
    value_head = Dense(1, gain=1.0)
    trunk = torso(spec, options)
    apart = None if heads.share or trunk.recurrent else torso(spec, options)  # the value's own

    def init(key: Key) -> PyTree:
        keys = jax.random.split(key, 5)
        params = trunk.init(keys[0], keys[2])
        if apart:
            params["value_body"] = apart.init(keys[1], keys[2])["body"]
        x = jnp.zeros((1, trunk.width), jnp.float32)
        params["policy"] = policy_head.init(keys[3], x)
        params["value"] = value_head.init(keys[4], x)
        if not isinstance(spec.action, Discrete):
            params["log_std"] = jnp.full((outputs,), heads.log_std, jnp.float32)
        return params

    def read(params: PyTree, x: Array, y: Array, observation: PyTree) -> tuple[Any, Array]:
        out = policy_head.apply(params["policy"], x)
        value = value_head.apply(params["value"], y)[..., 0]  # type: ignore[index]
        if isinstance(spec.action, Discrete):
            return Categorical.of(out, legal(observation)), value  # type: ignore[arg-type]
        log_std = jnp.broadcast_to(params["log_std"], out.shape)  # type: ignore[union-attr]
        return (TanhGaussian if heads.squash else Gaussian)(out, log_std), value  # type: ignore[arg-type]

    def step(params: PyTree, memory: Memory, timestep: TimeStep) -> tuple[Memory, Any, Array]:
        memory, x = trunk.step(params, memory, timestep)
        y = apart.step({"body": params["value_body"]}, (), timestep)[1] if apart else x
        one = jax.tree.map(lambda x: x[None], timestep.observation)
        policy, value = read(params, x, y, one)
        return memory, *jax.tree.map(lambda x: x[0], (policy, value))

    def unroll(params: PyTree, memory: Memory, timesteps: TimeStep) -> tuple[Any, Array]:
        _, x = trunk.unroll(params, memory, timesteps)
        y = apart.unroll({"body": params["value_body"]}, (), timesteps)[1] if apart else x
        return read(params, x, y, timesteps.observation)

    def action(policy: Any, sample: Array) -> Array:
        unit = policy.action(sample)
        return unit if isinstance(spec.action, Discrete) else spec.action.scale(unit)

    return ActorCritic(init, trunk.memory, step, action, unroll, trunk.recurrent, trunk.reads)
