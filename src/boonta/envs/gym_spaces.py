"""Gymnasium's spaces in our words: the spec of an environment, what its door needs, and the way of actions inward."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import PyTree
from boonta.envs import parts
from boonta.envs.errors import Unsuitable


def spec_of(name: str, observation: spaces.Space, action: spaces.Space) -> Spec:
    """
    Raises:
        Unsuitable: no agent of ours can take such spaces.
    """
    inner = _action(name, action)
    return Spec(name, parts.with_mask(name, _observation(name, observation), getattr(inner, "n", 0)), inner)


def _observation(name: str, space: spaces.Space, path: str = "observation") -> PyTree:
    if isinstance(space, spaces.Dict):
        parts.same_kind(name, path, space.spaces)
        return {key: _observation(name, part, f"{path}/{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_observation(name, part, f"{path}/{i}") for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        if space.dtype != np.uint8:
            return Shape(space.shape, space.dtype if space.dtype == np.bool_ else np.dtype(np.float32))
        return Shape(space.shape, np.uint8, parts.bounds(space.low, space.high))
    if isinstance(space, spaces.MultiBinary):
        return Shape(space.shape, np.bool_)
    if isinstance(space, spaces.Discrete):
        return Shape((), np.int32, categories=int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return Shape(space.shape, np.int32, categories=parts.entries(space.nvec))
    raise Unsuitable(
        f"{name} has the {path} {space!r}; allowed: Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of "
        "those; a wrapper such as gymnasium.wrappers.TransformObservation can leave it out or encode it"
    )


def said(space: spaces.Space) -> PyTree:
    """The spaces at the leaves, as a tree of the observation's structure."""
    if isinstance(space, spaces.Dict):
        return {key: said(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(said, space.spaces))
    return space


def starts(space: spaces.Space) -> PyTree:
    """What the environment calls the first category, at each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: starts(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(starts, space.spaces))
    return getattr(space, "start", 0)


def _action(name: str, space: spaces.Space) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.Box):
        parts.some_numbers(name, space.shape)
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        return Continuous(tuple(space.shape), low, high)
    raise Unsuitable(
        f"{name} has actions {space!r}, which are not supported; allowed: Discrete, and Box; a wrapper such as "
        "gymnasium.wrappers.TransformAction can make them one of those"
    )


def inward(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """From one of our actions to the space's own."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    assert isinstance(space, spaces.Box)  # `_action` has let no other in
    return parts.clipped(space.low, space.high, space.dtype)
