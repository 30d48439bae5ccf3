"""What MuZero plans with: representation, dynamics, prediction and projection (Schrittwieser et al. 2020); and a judge.

The residual network is that of MooZi (section 5.2.7); its perceptron has the same parts. Both give the same form of
answer for what is seen and for what is imagined.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.types import Array, Key, PyTree
from boonta.nets.convolution import Conv
from boonta.nets.dense import Dense
from boonta.ops.imagined import TURNS

Norm = Literal["batch", "layer", "none"]
SCREEN = 36  # pixels in height and width


class Options(NamedTuple):
    """Its shape; the agents' settings of the same names say what each is."""

    body: Literal["auto", "mlp", "resnet"] = "auto"
    width: int = 128
    layers: tuple[int, ...] = (1, 1, 1)
    channels: int = 32
    blocks: tuple[int, ...] = (6, 2, 1)
    head: int = 128
    norm: Norm = "layer"


class Answer(NamedTuple):
    """Of one inference.

    Attributes:
        state: hidden, [B, ...].
        value: logits [B, bins].
        reward: logits [B, bins]; of what is seen, all alike.
        discount: logits [B, 3] of `TURNS`; of what is seen, all alike.
        policy: logits [B, A].
    """

    state: PyTree
    value: Array
    reward: Array
    discount: Array
    policy: Array


class Planner(NamedTuple):
    """Pure functions. Statistics are those of batch normalisation: {} without it.

    Attributes:
        init: key -> (params, statistics).
        initial: (params, statistics, features [B, ...], learning) -> (Answer, statistics).
        recurrent: (params, statistics, hidden state [B, ...], actions int32 [B], learning) -> (Answer, statistics).
        project: (params, hidden state [B, ...]) -> float32 [B, d], of as many numbers as the state has.
    """

    init: Callable[[Key], tuple[PyTree, PyTree]]
    initial: Callable[[PyTree, PyTree, Array, bool], tuple[Answer, PyTree]]
    recurrent: Callable[[PyTree, PyTree, PyTree, Array, bool], tuple[Answer, PyTree]]
    project: Callable[[PyTree, PyTree], Array]


def planner(shape: tuple[int, ...], actions: int, bins: int, options: Options) -> Planner:
    """The networks for features of this shape.

    Args:
        shape: of what the representation sees, [H, W, C] for a residual network.
        actions: how many.
        bins: of the supports of values and rewards.
        options: Options.

    Raises:
        ValueError: a residual network for what is no image, or not three numbers of blocks or layers.
    """
    net = _Network(actions, bins, _fitting(shape, options, 3))
    call = partial(_applied, net)

    def init(key: Key) -> tuple[PyTree, PyTree]:
        made = net.init(key, jnp.zeros((1, *shape), jnp.float32), jnp.zeros(1, jnp.int32), method="everything")
        return made["params"], made.get("batch_stats", {})

    def initial(params: PyTree, statistics: PyTree, features: Array, learning: bool) -> tuple[Answer, PyTree]:
        return call(params, statistics, features, learning, method="initial")

    def recurrent(
        params: PyTree, statistics: PyTree, state: PyTree, action: Array, learning: bool
    ) -> tuple[Answer, PyTree]:
        return call(params, statistics, state, action, learning, method="recurrent")

    def project(params: PyTree, state: PyTree) -> Array:
        return net.apply({"params": params}, state, method="project")  # type: ignore[return-value]

    return Planner(init, initial, recurrent, project)


class Judge(NamedTuple):
    """What AlphaZero asks: policy and value of what is seen.

    Attributes:
        init: key -> (params, statistics).
        apply: (params, statistics, features [B, ...], learning) -> ((policy logits [B, A], value logits [B, bins]),
            statistics).
    """

    init: Callable[[Key], tuple[PyTree, PyTree]]
    apply: Callable[[PyTree, PyTree, Array, bool], tuple[tuple[Array, Array], PyTree]]


def judge(shape: tuple[int, ...], actions: int, bins: int, options: Options) -> Judge:
    """The network for features of this shape; of `layers` and `blocks`, one number each counts.

    Raises:
        ValueError: as `planner`.
    """
    net = _Judge(actions, bins, _fitting(shape, options, 1))

    def init(key: Key) -> tuple[PyTree, PyTree]:
        made = net.init(key, jnp.zeros((1, *shape), jnp.float32), True)
        return made["params"], made.get("batch_stats", {})

    return Judge(init, lambda params, statistics, *args: _applied(net, params, statistics, *args))


def _applied(net: nn.Module, params: PyTree, statistics: PyTree, *args: Any, method: str | None = None) -> Any:
    """An answer, and the statistics after it."""
    variables = {"params": params} | ({"batch_stats": statistics} if statistics else {})
    out, changed = net.apply(variables, *args, method=method, mutable=["batch_stats"])
    return out, changed.get("batch_stats", {})


def _fitting(shape: tuple[int, ...], options: Options, parts: int) -> Options:
    """The options with the body that fits."""
    body = options.body if options.body != "auto" else "resnet" if len(shape) == 3 else "mlp"
    if body == "resnet" and len(shape) != 3:
        raise ValueError(f"agent.body 'resnet' needs an image [H, W, C], got an observation of shape {shape}; use mlp")
    for name, numbers in (("blocks", options.blocks), ("layers", options.layers)):
        if len(numbers) != parts:
            each = "three numbers, of representation, dynamics and prediction" if parts == 3 else "one number"
            raise ValueError(f"agent.{name} must be {each}, got {list(numbers)}")
    return options._replace(body=body)


class _Judge(nn.Module):
    actions: int
    bins: int
    options: Options

    @nn.compact
    def __call__(self, features: Array, learning: bool) -> tuple[Array, Array]:
        options = self.options
        part, (size,) = (_Grid, options.blocks) if options.body == "resnet" else (_Layers, options.layers)
        x = part(options, size)(_measured(features, options), learning)
        return _Head(self.actions, options)(x, learning), _Head(self.bins, options)(x, learning)


class _Network(nn.Module):
    """All four functions, so that they share one tree of parameters."""

    actions: int
    bins: int
    options: Options

    def setup(self) -> None:
        options = self.options
        part, sizes = (_Grid, options.blocks) if options.body == "resnet" else (_Layers, options.layers)
        self.represent, self.dynamics, self.prediction = (part(options, size) for size in sizes)
        self.value, self.reward = _Head(self.bins, options), _Head(self.bins, options)
        self.policy, self.discount = _Head(self.actions, options), _Head(len(TURNS), options)
        self.projection = _Projection(options.head)
        self.root_state, self.next_state = _State(options), _State(options)

    def initial(self, features: Array, learning: bool) -> Answer:
        state = self.root_state(self.represent(_measured(features, self.options), learning), learning)
        n = len(features)
        nothing = jnp.zeros((n, self.bins), jnp.float32), jnp.zeros((n, len(TURNS)), jnp.float32)
        return self._answer(state, *nothing, learning)

    def recurrent(self, state: Array, action: Array, learning: bool) -> Answer:
        planes = jax.nn.one_hot(action, self.actions, dtype=jnp.float32)
        if state.ndim == 4:
            planes = jnp.broadcast_to(planes[:, None, None], (*state.shape[:3], self.actions)) / self.actions
        x = self.dynamics(jnp.concatenate([state, planes], axis=-1), learning)
        reward, discount = self.reward(x, learning), self.discount(x, learning)
        return self._answer(self.next_state(x, learning), reward, discount, learning)

    def project(self, state: Array) -> Array:
        return self.projection(state.reshape(len(state), -1))

    def everything(self, features: Array, action: Array) -> None:
        """Touch all parameters."""
        answer = self.initial(features, True)
        self.project(self.recurrent(answer.state, action, True).state)

    def _answer(self, state: Array, reward: Array, discount: Array, learning: bool) -> Answer:
        x = self.prediction(state, learning)
        return Answer(state, self.value(x, learning), reward, discount, self.policy(x, learning))


def _measured(features: Array, options: Options) -> Array:
    """With a one beside a vector: norms after layers without biases would leave nothing of how long it is."""
    if options.body == "resnet":
        return features
    x = features.reshape(len(features), -1)
    return jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=-1)


class _Grid(nn.Module):
    """A convolution and residual blocks (He et al. 2016); what is as large as a screen is made smaller first."""

    options: Options
    blocks: int

    @nn.compact
    def __call__(self, x: Array, learning: bool) -> Array:
        if min(x.shape[1:3]) >= SCREEN:
            x = nn.relu(Conv(self.options.channels, 8, 4)(x))
            x = nn.relu(Conv(self.options.channels, 4, 2)(x))
        x = _Plane(self.options)(x, learning)
        for _ in range(self.blocks):
            x = nn.relu(x + _Plane(self.options, linear=True)(_Plane(self.options)(x, learning), learning))
        return x


class _State(nn.Module):
    """Onto hidden states, whose entries are from 0 to 1."""

    options: Options

    @nn.compact
    def __call__(self, x: Array, learning: bool) -> Array:
        return _scaled(_Plane(self.options)(x, learning) if self.options.body == "resnet" else x)


class _Plane(nn.Module):
    """A convolution that leaves the size as it is."""

    options: Options
    linear: bool = False

    @nn.compact
    def __call__(self, x: Array, learning: bool) -> Array:
        x = _normed(Conv(self.options.channels, 3, padding="SAME")(x), self.options.norm, learning)
        return x if self.linear else nn.relu(x)


class _Layers(nn.Module):
    """Dense layers."""

    options: Options
    layers: int

    @nn.compact
    def __call__(self, x: Array, learning: bool) -> Array:
        x = x.reshape(len(x), -1)
        for _ in range(self.layers):
            x = nn.relu(_normed(Dense(self.options.width)(x), self.options.norm, learning))
        return x


class _Projection(nn.Module):
    hidden: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return Dense(x.shape[-1])(nn.relu(Dense(self.hidden)(x)))


class _Head(nn.Module):
    outputs: int
    options: Options

    @nn.compact
    def __call__(self, x: Array, learning: bool) -> Array:
        x = Dense(self.options.head)(x.reshape(len(x), -1))
        x = nn.relu(_normed(x, self.options.norm, learning))
        return Dense(self.outputs, gain=0.01)(x)


def _normed(x: Array, norm: Norm, learning: bool) -> Array:
    if norm == "none":
        return x
    if norm == "layer":
        return nn.LayerNorm()(x)
    return nn.BatchNorm(use_running_average=not learning, momentum=0.9)(x)


def _scaled(state: Array) -> Array:
    """Between 0 and 1, each on its own: what is imagined stays where actions can be told apart (appendix G)."""
    axes = tuple(range(1, state.ndim))
    low, high = jnp.min(state, axes, keepdims=True), jnp.max(state, axes, keepdims=True)
    return (state - low) / jnp.maximum(high - low, 1e-5)
