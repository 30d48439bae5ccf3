"""What comes before the heads: a body that fits the observation, and a memory behind it or none."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.spec import Discrete, Spec
from boonta.core.trees import select
from boonta.core.types import Array, Key, Memory, PyTree, TimeStep
from boonta.nets.dense import Init
from boonta.nets.mlp import MLP
from boonta.nets.vision import GridCNN, ImpalaResNet, NatureCNN
from boonta.ops import blocks
from boonta.ops.rewards import transform_reward

Body = Literal["auto", "mlp", "grid_cnn", "nature_cnn", "impala_resnet"]
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
    """

    init: Callable[[Key, Key], PyTree]
    memory: Callable[[], Memory]
    step: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]
    unroll: Callable[[PyTree, Memory, TimeStep], tuple[Memory, Array]]
    width: int
    recurrent: bool


def torso(spec: Spec, options: Options) -> Torso:
    """The torso for an environment.

    Raises:
        ValueError: a convolutional body for an observation that is no image, or no widths.
    """
    if not options.hidden or not options.channels:
        raise ValueError("agent.hidden and agent.channels must each name at least one width, got none")
    shapes = jax.eval_shape(features, spec.observation)
    body, image = _body(shapes, options)
    cell = {"none": None, "lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[options.core]
    cell = cell and cell(options.core_size)

    def look(params: PyTree, observation: PyTree) -> Array:
        if not image:
            return body.apply(params, _join(features(observation), shapes))  # type: ignore[return-value]
        (frames,) = jax.tree.leaves(seen(observation))
        return blocks.mapped(lambda x: body.apply(params, _scaled(x)), frames)  # type: ignore[arg-type]

    def core_input(x: Array, timestep: TimeStep) -> Array:
        if not options.previous:
            return x
        action = timestep.action
        if isinstance(spec.action, Discrete):
            action = jax.nn.one_hot(action, spec.action.n) * ~timestep.first()[..., None]
        action = action.reshape(*timestep.reward.shape, -1)
        reward = transform_reward(timestep.reward, options.reward_scale, options.reward_clip)
        return jnp.concatenate([x, action, reward[..., None]], axis=-1)

    def remember(params: PyTree, memory: Memory, x: Array, first: Array) -> tuple[Memory, Array]:
        memory = select(first, blank(), memory)
        return cell.apply(params, memory, x)  # type: ignore[union-attr]

    def blank() -> Memory:
        return cell.initialize_carry(jax.random.key(0), (1,)) if cell is not None else ()

    def init(body_key: Key, core_key: Key) -> PyTree:
        zero = jnp.zeros((1, *_shape(shapes)), jnp.float32)
        params: dict[str, PyTree] = {"body": body.init(body_key, zero)}
        if cell is not None:
            x = jax.eval_shape(body.apply, params["body"], zero)
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
    return Torso(init, blank, step, unroll, width, cell is not None)


def features(observation: PyTree) -> PyTree:
    """What of an observation the network sees (`seen`), as float32; uint8 images in [0, 1]."""
    return jax.tree.map(_scaled, seen(observation))


def seen(observation: PyTree) -> PyTree:
    """All of an observation but the legal mask and the environment's state, as it is."""
    if isinstance(observation, dict):
        observation = {name: x for name, x in observation.items() if name not in ("legal", "state")}
        if len(observation) == 1:
            (observation,) = observation.values()
    return observation


def legal(observation: PyTree) -> Array | None:
    """The mask of legal actions, or None."""
    return observation.get("legal") if isinstance(observation, dict) else None


def spec_timestep(spec: Spec) -> TimeStep:
    """The shapes of one time step of an environment."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    action = jax.eval_shape(spec.action.zero)
    return TimeStep(spec.observation, action, scalar, scalar, jax.ShapeDtypeStruct((), jnp.int8))  # type: ignore[arg-type]


def _scaled(x: Array) -> Array:
    return x.astype(jnp.float32) / 255.0 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def _body(shapes: PyTree, options: Options) -> tuple[nn.Module, bool]:
    shape = _shape(shapes)
    kind = options.body
    if kind == "auto":
        kind = "mlp" if len(shape) != 3 else "nature_cnn" if min(shape[:2]) >= 36 else "grid_cnn"
    if kind == "mlp":
        return _Flat(MLP(options.hidden, options.activation, options.initial)), False
    if len(shape) != 3:
        raise ValueError(f"agent.body {kind!r} needs an image [H, W, C], got an observation of shape {shape}; use mlp")
    least = {"nature_cnn": 36, "grid_cnn": 3}.get(kind, 1)
    if min(shape[:2]) < least:
        raise ValueError(f"agent.body {kind!r} needs at least {least} x {least} pixels, got {shape[0]} x {shape[1]}")
    if kind == "nature_cnn":
        return NatureCNN(options.hidden[-1], initial=options.initial), True
    if kind == "grid_cnn":
        return GridCNN(options.channels[0], options.hidden[-1], initial=options.initial), True
    channels = options.channels if len(options.channels) > 1 else (16, 32, 32)
    return ImpalaResNet(channels, hidden=options.hidden[-1], initial=options.initial), True


class _Flat(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return self.inner(x.reshape(x.shape[0], -1))


def _shape(shapes: PyTree) -> tuple[int, ...]:
    """The shape of the network's input: that of a single array, else of all of them flattened into one."""
    leaves = jax.tree.leaves(shapes)
    return leaves[0].shape if len(leaves) == 1 else (sum(int(np.prod(leaf.shape)) for leaf in leaves),)


def _join(observation: PyTree, shapes: PyTree) -> Array:
    leaves = jax.tree.leaves(observation)
    if len(leaves) == 1:
        return leaves[0]
    shapes = [leaf.shape for leaf in jax.tree.leaves(shapes)]
    flat = [leaf.reshape(*leaf.shape[: leaf.ndim - len(shape)], -1) for leaf, shape in zip(leaves, shapes, strict=True)]
    return jnp.concatenate(flat, axis=-1)
