"""The door: what an environment of another library gives is held to its spec, leaf by leaf, and written into arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from boonta.core import nests
from boonta.core.spec import Shape, Spec
from boonta.core.types import PyTree
from boonta.envs import parts
from boonta.envs.errors import Unfit

CLOSELY = 2  # values of each environment whose entries are looked at: of the first reset and the first step
LARGE = 1e6  # beyond it rewards, or entries of observations, are told of


class Leaf:
    """One array of the observations of a batch, and what one environment may write there.

    Args:
        name: its path, `observation/image`.
        shape: what the spec says.
        out: [E, ...].
        said: the environment's own space, for messages.
        start: what the environment calls the first of each entry's categories.
    """

    def __init__(self, name: str, shape: Shape, out: np.ndarray, said: Any, start: Any = 0) -> None:
        self.name, self.shape, self.dtype, self.out, self.said = name, tuple(shape.shape), shape.dtype, out, said
        self.start, self.counts = start, shape.categories
        self.low, self.high = shape.bounds or (0, 255)
        self.looks = 0  # at entries, so far
        self.usual: np.dtype | None = None  # the dtype that needs none any more

    def write(self, i: int, value: Any) -> None:
        """The value of environment i, after a look at its shape and dtype; of the first two, at their entries.

        Raises:
            Unfit: it is not of its space.
        """
        if value.__class__ is not np.ndarray:
            value = self._array(value)
        if value.dtype is not self.usual or value.shape != self.shape:
            self._look(value)
        if self.counts is not None:
            value = value - self.start
            if not ((value >= 0) & (value < self.counts)).all():
                raise self._unfit(value + self.start, "of other values than its space has")
        self.out[i] = value

    def _array(self, value: Any) -> np.ndarray:
        try:
            return np.asarray(value)
        except ValueError:  # rows of several lengths
            raise Unfit(f"{self.name} is no array: {type(value).__name__}, where its space is {self.said}") from None

    def _look(self, value: np.ndarray) -> None:
        kind = value.dtype.kind
        if value.shape != self.shape:
            raise self._unfit(value, "of another shape than its space")
        if kind not in "biuf" or (kind == "f" and (self.dtype.kind in "iub")):
            raise self._unfit(value, "of another dtype than its space")
        if self.dtype == np.uint8 and not ((value >= np.asarray(self.low)) & (value <= np.asarray(self.high))).all():
            raise self._unfit(value, "beyond the bounds of its space")
        if self.dtype == np.bool_ and not ((value == 0) | (value == 1)).all():
            raise self._unfit(value, "neither 0 nor 1 everywhere")
        if kind == "f" and (np.isfinite(value) & (abs(value) > np.finfo(np.float32).max)).any():
            raise self._unfit(value, "too large for float32; scale it in a wrapper")
        self.looks += 1
        narrows = self.dtype in (np.uint8, np.bool_) and value.dtype != self.dtype  # may say what the array cannot
        if self.looks >= CLOSELY and not narrows:
            self.usual = value.dtype

    def _unfit(self, value: np.ndarray, why: str) -> Unfit:
        span = f" from {value.min():g} to {value.max():g}" if value.size and value.dtype.kind in "iuf" else ""
        told = f"{self.name} is {why}: it got {value.dtype}{list(value.shape)}{span}, where its space is {self.said}"
        return Unfit(f"{told}; make the environment give what its space says, or correct the space")


class Door:
    """Writes the observations of environments into the arrays of a batch.

    Args:
        spec: the environments'.
        out: the observation's arrays [E, ...].
        said: a tree of the environment's own spaces, for messages.
        start: a tree of what the environment calls the first of each entry's categories; None for 0 everywhere.
    """

    def __init__(self, spec: Spec, out: PyTree, said: PyTree, start: PyTree = None) -> None:
        self._name, self._spec = spec.name, spec.observation
        arrays = nests.leaves(out)
        starts = nests.leaves(parts.renamed(start)) if start is not None else [0] * len(arrays)
        named = list(nests.named({"observation": spec.observation}))
        spaces = nests.leaves(parts.renamed(said))
        rows = zip(named, arrays, spaces, starts, strict=True)
        self.leaves = [Leaf(name, shape, x, space, first) for (name, shape), x, space, first in rows]
        self._bare = len(self.leaves) == 1 and self.leaves[0].name == "observation"
        self._mask = out.get("legal") if isinstance(out, dict) else None

    def write(self, i: int, observation: PyTree, over: bool = False) -> None:
        """The observation of environment i, at a true end or elsewhere.

        Raises:
            Unfit: it is not of its space.
        """
        try:
            self._write(i, observation, over)
        except Unfit as error:
            raise Unfit(f"{self._name}: {error}") from None

    def reward(self, value: Any) -> float:
        """A reward as a number; an array of one number is one.

        Raises:
            Unfit: it is none.
        """
        if value.__class__ is float:
            return value
        try:
            return float(value if np.ndim(value) == 0 else np.asarray(value).reshape(()))
        except (TypeError, ValueError):
            told = f"the reward must be a number, got {value!r} ({type(value).__name__})"
            raise Unfit(f"{self._name}: {told}") from None

    def _write(self, i: int, observation: PyTree, over: bool) -> None:
        if self._bare:
            self.leaves[0].write(i, observation)
            return
        values = _flattened(self._spec, parts.renamed(observation), "observation")
        for leaf, value in zip(self.leaves, values, strict=True):
            leaf.write(i, value)
        if self._mask is not None:
            parts.legal_at(self._mask, i, over)


def remarks(name: str, observation: PyTree, said: PyTree, rewards: list[Any]) -> list[str]:
    """What a user should know of the first values that an environment gave, whose spaces are `said`."""
    told = []
    found = list(nests.named({"observation": observation}))
    for (leaf, value), space in zip(found, nests.leaves(parts.renamed(said)), strict=True):
        if np.issubdtype(value.dtype, np.floating) and _is_beyond(value, space):
            span = f"from {np.nanmin(value):g} to {np.nanmax(value):g}"
            told.append(f"{name}: {leaf} has numbers {span}, beyond its space {space}; networks read them as they are")
    if any(np.ndim(x) for x in rewards):
        told.append(f"{name}: rewards are arrays of one number, and are taken as numbers")
    if any(abs(float(np.asarray(x).reshape(()))) > LARGE for x in rewards):
        told.append(f"{name}: rewards are very large; agent.reward_scale makes them smaller")
    for leaf, value in found:
        if np.issubdtype(value.dtype, np.floating) and (abs(value) > LARGE).any():
            told.append(
                f"{name}: {leaf} is as large as {np.nanmax(abs(value)):g}; agent.normalize_observations=true gives it "
                "mean 0 and variance 1"
            )
    return told


def _is_beyond(value: np.ndarray, space: Any) -> bool:
    """Whether numbers are beyond the bounds of their space by more than a thousandth of them, or of 1."""
    low = getattr(space, "low", getattr(space, "minimum", -np.inf))
    high = getattr(space, "high", getattr(space, "maximum", np.inf))
    slack = [1e-3 * np.maximum(np.where(np.isfinite(bound), abs(bound), 0.0), 1.0) for bound in (low, high)]
    return bool(((value < low - slack[0]) | (value > high + slack[1])).any())


def _flattened(spec: PyTree, observation: PyTree, name: str) -> list[Any]:
    """The values at the leaves of a spec.

    Raises:
        Unfit: another structure.
    """
    if isinstance(spec, dict):
        if not isinstance(observation, Mapping) or observation.keys() != spec.keys():
            got = sorted(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            raise Unfit(f"{name} must have the keys {sorted(spec)} of its space, got {got}")
        return [x for key in sorted(spec) for x in _flattened(spec[key], observation[key], f"{name}/{key}")]
    if isinstance(spec, tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(spec):
            raise Unfit(f"{name} must have the {len(spec)} parts of its space, got {observation!r:.80}")
        parts = zip(spec, observation, strict=True)
        return [x for i, (one, value) in enumerate(parts) for x in _flattened(one, value, f"{name}/{i}")]
    return [observation]
