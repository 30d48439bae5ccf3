"""How networks read an observation: which arrays it has, and which numbers each of them becomes."""

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.spec import Spec
from boonta.core.types import Array, PyTree

ONE_HOT = 1024  # categories of an entry above which it is embedded
SIDE = 24  # pixels that make an image of axes whose order is not the usual one
SMALL_SIDE = 8  # the same, where one to four channels of uint8 come first, or fewer channels than a square has rows
CHANNELS = 16  # the most that such an image has; with stacked frames, in each of them
FLAT = 4096  # numbers of an array of four axes or more that are a vector all the same
SMALL = 3  # pixels that the smallest convolution needs


class Leaf(NamedTuple):
    """One array of an observation.

    Attributes:
        name: its path, such as `observation/image`.
        kind: what is made of it: `image` float32 [H, W, C], `vector` float32 of its own shape, `one_hot` float32
            [sum of counts], `embedding` int32 [entries], the rows of a table of as many rows as the counts' sum.
        stored: its shape in observations.
        shape: of what is made of it.
        order: the stored axes in the order of [H, W, C], frames where channels are; () where they are so.
        scale: (low, width) of a uint8 in place of 0 and 255, numbers or lists.
        counts: of categories, int [entries].
        remark: what a user should know of it; "" if there is nothing.
    """

    name: str
    kind: Literal["image", "vector", "one_hot", "embedding"]
    stored: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    scale: tuple[Any, Any] | None = None
    counts: tuple[int, ...] = ()
    remark: str = ""

    def arranged(self, x: Array) -> Array:
        """[..., *stored] -> [..., H, W, C] of the same dtype, of images; anything else as it is."""
        if self.kind != "image" or self.stored == self.shape:
            return x
        lead = x.shape[: x.ndim - len(self.stored)]
        if self.order:
            x = jnp.transpose(x, (*range(len(lead)), *(len(lead) + axis for axis in self.order)))
        return x.reshape(*lead, *self.shape)

    def scaled(self, x: Array) -> Array:
        """An arranged array as float32, uint8 by its bounds."""
        if x.dtype != jnp.uint8:
            return x.astype(jnp.float32)
        if self.scale is None:
            return x.astype(jnp.float32) / 255.0
        low, width = (np.asarray(bound, np.float32) for bound in self.scale)
        return (x.astype(jnp.float32) - low) / width

    def features(self, x: Array) -> Array:
        """[..., *stored] -> [..., *shape]."""
        if not self.counts:
            return self.scaled(self.arranged(x))
        entries = x.reshape(*x.shape[: x.ndim - len(self.stored)], len(self.counts))
        if self.kind == "embedding":
            return entries + np.cumsum((0, *self.counts[:-1]), dtype=np.int32)
        if len({*self.counts}) == 1:
            return jax.nn.one_hot(entries, self.counts[0], dtype=jnp.float32).reshape(*entries.shape[:-1], -1)
        parts = [jax.nn.one_hot(entries[..., i], count, dtype=jnp.float32) for i, count in enumerate(self.counts)]
        return jnp.concatenate(parts, axis=-1)


class Normalized(NamedTuple):
    """Features that are read as they are, and the legal mask beside them, None if there is none."""

    features: PyTree
    legal: Array | None


class Inputs(NamedTuple):
    """What a network reads of an environment's observations.

    Attributes:
        leaves: in the order of the tree.
        planned: whether the observation's `state` is the model's, and not to be read.
        shapes: the tree of what `features` makes.
    """

    leaves: tuple[Leaf, ...]
    planned: bool
    shapes: PyTree

    def raw(self, observation: PyTree) -> PyTree:
        """All of an observation but the legal mask and a model's state, as it is; what is normalised too."""
        if isinstance(observation, Normalized):
            return observation
        if isinstance(observation, dict):
            hidden = ("legal", "state") if self.planned else ("legal",)
            observation = {name: x for name, x in observation.items() if name not in hidden}
            if len(observation) == 1:
                (observation,) = observation.values()
        return observation

    def features(self, observation: PyTree) -> PyTree:
        """The tree of what the leaves make of an observation [...]."""
        return self.read(self.raw(observation))

    def read(self, raw: PyTree) -> PyTree:
        """`features` of what `raw` gave."""
        if isinstance(raw, Normalized):
            return raw.features
        arrays, structure = jax.tree.flatten(raw)
        made = [leaf.features(x) for leaf, x in zip(self.leaves, arrays, strict=True)]
        return jax.tree.unflatten(structure, made)

    def numbers(self, features: PyTree) -> PyTree:
        """Those of `features` that are quantities: all of them, or a list without categories."""
        if not any(leaf.counts for leaf in self.leaves):
            return features
        arrays = jax.tree.leaves(features)
        return [x for leaf, x in zip(self.leaves, arrays, strict=True) if not leaf.counts]

    def with_numbers(self, features: PyTree, numbers: PyTree) -> PyTree:
        """The inverse of `numbers`."""
        if not any(leaf.counts for leaf in self.leaves):
            return numbers
        arrays, structure = jax.tree.flatten(features)
        rest = iter(numbers)
        both = [x if leaf.counts else next(rest) for leaf, x in zip(self.leaves, arrays, strict=True)]
        return jax.tree.unflatten(structure, both)

    def images(self) -> list[Leaf]:
        """Those that are images."""
        return [leaf for leaf in self.leaves if leaf.kind == "image"]

    def embedded(self) -> list[Leaf]:
        """Those that need a table of their own."""
        return [leaf for leaf in self.leaves if leaf.kind == "embedding"]

    def vector(self, observation: PyTree, rows: tuple[int, ...] = ()) -> Array:
        """All features as one vector, float32 [*rows, width], of an observation with these leading axes."""
        arrays = jax.tree.leaves(self.features(observation))
        return jnp.concatenate([x.reshape(*rows, -1) for x in arrays], axis=-1)

    def remarks(self) -> list[str]:
        """What a user should know of how the observation is read."""
        told = [leaf.remark for leaf in self.leaves if leaf.remark]
        if len(self.leaves) > 1 and (images := self.images()):
            rest = "; the rest by a perceptron" if len(images) < len(self.leaves) else ""
            told.append(f"convolutions read {', '.join(leaf.name for leaf in images)}{rest}")
        return told

    def plain(self) -> bool:
        """Whether it is read as versions read it that knew neither categories, bounds nor the order of axes."""
        joined = len(self.leaves) > 1 and bool(self.images())
        return not joined and not any(leaf.counts or leaf.scale or leaf.stored != leaf.shape for leaf in self.leaves)

    def only_vectors(self, who: str, spec: Spec) -> None:
        """Refuse what agents cannot read that have neither embeddings nor a body for several arrays.

        Args:
            who: the agent.
            spec: the environment's.

        Raises:
            ValueError: there are images beside other arrays, or categories that need an embedding.
        """
        if embedded := self.embedded():
            raise ValueError(
                f"{spec.name}: {embedded[0].name} has entries of more than {ONE_HOT} values, which need an embedding; "
                f"{who} has none: use ppo, vtrace, dqn or r2d2"
            )
        if len(self.leaves) > 1 and (images := self.images()):
            raise ValueError(
                f"{spec.name}: {images[0].name} is an image beside other arrays, and {who} reads one image or vectors: "
                "use ppo, vtrace, dqn or r2d2, or a wrapper that leaves one of them"
            )


def legal(observation: PyTree) -> Array | None:
    """The mask of legal actions, or None."""
    if isinstance(observation, Normalized):
        return observation.legal
    return observation.get("legal") if isinstance(observation, dict) else None


def inputs(spec: Spec, flat: bool = False) -> Inputs:
    """How networks read an environment's observations.

    Args:
        spec: the environment's.
        flat: whether images are read as vectors, which they may be of any shape then.

    Raises:
        ValueError: an array that looks like images whose axes are in no order that is known; the message has its shape.
    """
    empty = Inputs((), spec.model is not None, ())
    raw = empty.raw(spec.observation)
    paths = jax.tree_util.tree_leaves_with_path(raw)
    if not paths:
        raise ValueError(f"{spec.name} has no observation but what is legal; a network needs something to read")
    named = ["/".join(["observation", *map(_key, path)]) for path, _ in paths]
    leaves = tuple(_leaf(spec, name, shape, flat) for name, (_, shape) in zip(named, paths, strict=True))
    made = empty._replace(leaves=leaves)
    return made._replace(shapes=jax.eval_shape(made.features, spec.observation))


def _key(step: Any) -> str:
    return str(getattr(step, "key", getattr(step, "name", getattr(step, "idx", step))))


def _leaf(spec: Spec, name: str, given: Any, flat: bool) -> Leaf:
    stored, dtype = tuple(given.shape), np.dtype(given.dtype)
    categories = getattr(given, "categories", None)
    if categories is not None:
        counts = tuple(int(n) for n in np.broadcast_to(categories, stored).reshape(-1))
        if max(counts) > ONE_HOT:
            return Leaf(name, "embedding", stored, (len(counts),), counts=counts)
        return Leaf(name, "one_hot", stored, (sum(counts),), counts=counts)
    order, image = ((), None) if flat else _layout(stored, dtype)
    if order is None:
        raise ValueError(
            f"{spec.name}: {name} of shape {stored} looks like images, but its axes are in no order that is known: "
            "allowed are [H, W, C], [C, H, W] and stacks of those; reorder it in a wrapper, or set agent.body=mlp"
        )
    leaf = Leaf(name, "image" if image else "vector", stored, image or stored, order)
    if image and image != stored:
        told = f"{name} {stored} is read as an image of {image[0]} x {image[1]} with {image[2]} channels"
        leaf = leaf._replace(remark=told)
    elif not image and not flat and len(stored) > 2:
        leaf = leaf._replace(remark=f"{name} {stored} is read as a vector: it is no image that convolutions fit")
    return leaf._replace(scale=_scale(given, leaf)) if dtype == np.uint8 else leaf


def _scale(given: Any, leaf: Leaf) -> tuple[Any, Any] | None:
    """(low, width): images to [0, 1]; others, unless of 0 to 255, to mean 0 and variance 1 were they uniform."""
    bounds = getattr(given, "bounds", None)
    if bounds is None:
        return None
    low, high = (np.asarray(bound, np.float32) for bound in bounds)
    if (low == 0).all() and (high == 255).all():
        return None
    width = np.maximum(high - low, 1.0)
    if leaf.kind != "image":
        low, width = (low + high) / 2, width / 12**0.5
    arranged = [np.asarray(leaf.arranged(jnp.asarray(x))) if x.ndim else x for x in (low, width)]
    return arranged[0].tolist(), arranged[1].tolist()


def _layout(shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...] | None, tuple[int, int, int] | None]:
    """The order of the axes, () for the one that they have, and the image [H, W, C]; (None, None) for what is none.

    ((), None) is what is to be a vector.
    """
    if len(shape) == 2:
        grey = dtype == np.uint8 and min(shape) >= SIDE
        return (), ((*shape, 1) if grey else None)
    if len(shape) == 3:
        first, second, last = shape
        plain = dtype == np.uint8 and first <= 4 < last and min(second, last) >= SMALL_SIDE
        large = last > CHANNELS >= first and min(second, last) >= SIDE
        square = second == last and (first != last >= SIDE or (first <= CHANNELS and first < last >= SMALL_SIDE))
        if plain or large or square:
            return (1, 2, 0), (second, last, first)
        if (min(shape) > 2 * SIDE and first != second) or first == second == last >= SIDE:
            return None, None
        return (), (shape if min(first, second) >= SMALL else None)
    sides = [min(pair) >= SIDE for pair in pairwise(shape)]
    if len(shape) == 4:
        a, b, c, d = shape
        if sides[1] and a <= CHANNELS >= d:  # frames of [H, W, C]
            return (1, 2, 0, 3), (b, c, a * d)
        if sides[2] and a <= CHANNELS >= b:  # frames of [C, H, W]
            return (2, 3, 0, 1), (c, d, a * b)
        if sides[0] and c <= CHANNELS >= d:  # [H, W, C] of frames
            return (0, 1, 2, 3), (a, b, c * d)
    return ((), None) if int(np.prod(shape)) <= FLAT else (None, None)
