"""What comes before the heads: a body that fits the observation, and a memory behind it or none."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.spec import Discrete, Spec
from boonta.core.trees import select
from boonta.core.types import Array, Key, Memory, PyTree, TimeStep
from boonta.nets.body import Body, body, parts
from boonta.nets.dense import Init
from boonta.nets.inputs import Inputs, inputs
from boonta.ops import blocks
from boonta.ops.rewards import transform_reward

Core = Literal["none", "lstm", "gru"]
Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]


class Options(NamedTuple):
    """The shape of a torso; the agents' settings of the same names say what each is."""

    body: Body = "auto"
    hidden: tuple[int, ...] = (64, 64)
    channels: tuple[int, ...] = (16,)
    activation: Activation = "tanh"
    core: Core = "none"
    core_size: int = 128
    previous: bool = False
    initial: Init = "orthogonal"
    reward_scale: float = 1.0
    reward_clip: float | None = None


class Torso(NamedTuple):
    """Pure functions.

    Attributes:
        init: (key of the body, key of the memory) -> params.
        memory: () -> the memory of one environment before its first step; () if it has none.
        step: (params, memory, timestep) -> (memory, float32 [1, width]), for ONE environment.
        unroll: (params, memory [N], timesteps [N, L]) -> (memory [N] after them, float32 [N, L, width]).
        width: of the output.
        recurrent: whether it has memory.
        reads: what it reads of observations, which may be `Normalized`.
    """

    init: Callable[[Key, Key], PyTree]
    memory: Callable[[], Memory]
    step: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]
    unroll: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]
    width: int
    recurrent: bool
    reads: Inputs


def torso(spec: Spec, options: Options) -> Torso:
    """The torso for an environment.

    Raises:
        ValueError: a convolutional body for an observation that is no image, or no widths; as `inputs`.
    """
    if not options.hidden or not options.channels:
        raise ValueError("agent.hidden and agent.channels must each name at least one width, got none")
    reads = inputs(spec, flat=options.body == "mlp")
    module = body(reads, options)
    cell = {"none": None, "lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[options.core]
    cell = cell and cell(options.core_size)

    def look(params: PyTree, observation: PyTree) -> Array:
        def apply(raw: PyTree) -> Array:
            features = reads.read(raw)
            rows = jax.tree.leaves(features)[0].shape[:1]
            return module.apply(params, parts(reads, features, rows))  # type: ignore[return-value]

        raw = reads.raw(observation)
        return blocks.mapped(apply, raw) if reads.images() else apply(raw)

    def core_input(x: Array, timestep: TimeStep) -> Array:
        if not options.previous:
            return x
        action = timestep.action
        if isinstance(spec.action, Discrete):
            action = jax.nn.one_hot(action, spec.action.n, dtype=jnp.float32) * ~timestep.first()[..., None]
        action = action.reshape(*timestep.reward.shape, -1)
        reward = transform_reward(timestep.reward, options.reward_scale, options.reward_clip)
        return jnp.concatenate([x, action, reward[..., None]], axis=-1)

    def remember(params: PyTree, memory: Memory, x: Array, first: Array) -> tuple[Memory, Array]:
        memory = select(first, blank(), memory)
        return cell.apply(params, memory, x)  # type: ignore[union-attr]

    def blank() -> Memory:
        return cell.initialize_carry(jax.random.key(0), (1,)) if cell is not None else ()

    def init(body_key: Key, core_key: Key) -> PyTree:
        features = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), reads.shapes)
        zero = parts(reads, features, (1,))
        params: dict[str, PyTree] = {"body": module.init(body_key, zero)}
        if cell is not None:
            x = jax.eval_shape(module.apply, params["body"], zero)
            one = jax.tree.map(lambda s: jnp.zeros((1, *s.shape), s.dtype), spec_timestep(spec))
            x = jax.eval_shape(core_input, x, one)
            params["core"] = cell.init(core_key, blank(), jnp.zeros(x.shape[1:], jnp.float32))
        return params

    def step(params: PyTree, memory: Memory, timestep: TimeStep) -> tuple[Memory, Array]:
        one = jax.tree.map(lambda x: x[None], timestep)
        x = look(params["body"], one.observation)
        if cell is None:
            return memory, x
        memory, x = remember(params["core"], memory, core_input(x, one)[0], timestep.first())
        return memory, x[None]

    def unroll(params: PyTree, memory: Memory, timesteps: TimeStep) -> tuple[Memory, Array]:
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), timesteps.observation)
        x = look(params["body"], flat).reshape(*timesteps.reward.shape, -1)
        if cell is None:
            return memory, x

        def scan(memory: Memory, x: Array, first: Array) -> tuple[Memory, Array]:
            return jax.lax.scan(lambda m, xs: remember(params["core"], m, *xs), memory, (x, first))

        return jax.vmap(scan)(memory, core_input(x, timesteps), timesteps.first())

    width = options.core_size if cell is not None else options.hidden[-1]
    return Torso(init, blank, step, unroll, width, cell is not None, reads)


def spec_timestep(spec: Spec) -> TimeStep:
    """The shapes of one time step of an environment."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    action = jax.eval_shape(spec.action.zero)
    return TimeStep(spec.observation, action, scalar, scalar, jax.ShapeDtypeStruct((), jnp.int8))  # type: ignore[arg-type]
