"""The body that fits what is read: convolutions for an image, a perceptron for vectors, or both joined."""

import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from boonta.core.types import Array, PyTree
from boonta.nets.dense import Dense
from boonta.nets.inputs import Inputs, Leaf
from boonta.nets.mlp import ACTIVATIONS, MLP
from boonta.nets.vision import GridCNN, ImpalaResNet, NatureCNN

Body = Literal["auto", "mlp", "grid_cnn", "nature_cnn", "impala_resnet"]
EMBEDDING = 64  # width of a row of an embedding


def body(reads: Inputs, options: Any) -> nn.Module:
    """The module for `parts(reads, features)`.

    Args:
        reads: what it reads.
        options: the torso's.

    Raises:
        ValueError: a convolutional body for an observation that is no image.
    """
    if reads.embedded() or (reads.images() and len(reads.leaves) > 1):
        return Joined(reads.leaves, options)
    if options.body == "mlp" or (options.body == "auto" and not reads.images()):
        return _Flat(MLP(options.hidden, options.activation, options.initial))
    shapes = [leaf.shape for leaf in reads.leaves]
    return _vision(shapes[0] if len(shapes) == 1 else (sum(map(math.prod, shapes)),), options)


def parts(reads: Inputs, features: PyTree, rows: tuple[int, ...]) -> Array | list[Array]:
    """What the body is given of features [*rows, ...]: one array, vectors side by side; or a list where it joins."""
    arrays = jax.tree.leaves(features)
    if len(arrays) == 1 and not reads.embedded():
        return arrays[0]
    if reads.embedded() or reads.images():
        return arrays
    return jnp.concatenate([x.reshape(*rows, -1) for x in arrays], axis=-1)


class Joined(nn.Module):
    """Each image by convolutions, the rest by a perceptron, and a layer over them side by side.

    Attributes:
        leaves: what is read.
        options: the torso's.
    """

    leaves: tuple[Leaf, ...]
    options: Any

    @nn.compact
    def __call__(self, arrays: list[Array]) -> Array:
        """Features [N, ...] of each leaf -> float32 [N, hidden[-1]]."""
        options, seen, rest = self.options, [], []
        for leaf, x in zip(self.leaves, arrays, strict=True):
            if leaf.kind == "image":
                seen.append(_vision(leaf.shape, options)(x))
            elif leaf.kind == "embedding":
                table = nn.Embed(sum(leaf.counts), EMBEDDING, embedding_init=nn.initializers.normal(1.0))
                rest.append(table(x).reshape(len(x), -1))
            else:
                rest.append(x.reshape(len(x), -1))
        if rest:
            seen.append(MLP(options.hidden, options.activation, options.initial)(jnp.concatenate(rest, axis=-1)))
        if len(seen) == 1:
            return seen[0]
        x = Dense(options.hidden[-1], options.initial)(jnp.concatenate(seen, axis=-1))
        return ACTIVATIONS[options.activation](x)


def _vision(shape: tuple[int, ...], options: Any) -> nn.Module:
    """The convolutions for an image of this shape."""
    kind = options.body
    if kind in ("auto", "mlp"):
        kind = "nature_cnn" if min(shape[:2]) >= 36 else "grid_cnn"
    if len(shape) != 3:
        raise ValueError(f"agent.body {kind!r} needs an image [H, W, C], got an observation of shape {shape}; use mlp")
    least = {"nature_cnn": 36, "grid_cnn": 3}.get(kind, 1)
    if min(shape[:2]) < least:
        raise ValueError(f"agent.body {kind!r} needs at least {least} x {least} pixels, got {shape[0]} x {shape[1]}")
    if kind == "nature_cnn":
        return NatureCNN(options.hidden[-1], initial=options.initial)
    if kind == "grid_cnn":
        return GridCNN(options.channels[0], options.hidden[-1], initial=options.initial)
    channels = options.channels if len(options.channels) > 1 else (16, 32, 32)
    return ImpalaResNet(channels, hidden=options.hidden[-1], initial=options.initial)


class _Flat(nn.Module):
    inner: nn.Module

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return self.inner(x.reshape(x.shape[0], -1))
