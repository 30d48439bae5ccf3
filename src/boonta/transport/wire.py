"""What travels between environments and a server: raw arrays, in the order and shapes of a schema both sides know."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from boonta.core import nests
from boonta.core.spec import Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, PyTree, TimeStep

LARGEST = 1e15  # number that is taken from a client: squares of such numbers, and their sums, are finite
_NUMBER = np.dtype("<f4")
_LIMITS = np.array([[LARGEST], [1.0]], np.float32)  # of rewards and discounts
_MID, _LAST = bytes([MID]), bytes([LAST])


class Malformed(ValueError):
    """What came is not what the schema says; the message tells what is wrong."""


class Leaf(NamedTuple):
    """One array: its name, its dtype, its shape for one environment, and its bytes."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    nbytes: int
    categories: Any = None
    bounds: Any = None


class Schema:
    """The arrays of time steps and actions of an environment.

    Args:
        spec: the environment's.

    Attributes:
        step_bytes: of a time step of one environment.
        action_bytes: of an action of one environment.
        no_actions: actions [0, ...], for their shape and dtype.
        text: as boonta.proto describes it.
        fingerprint: SHA-256 of it.
    """

    def __init__(self, spec: Spec) -> None:
        self._observation = spec.observation
        self._seen = _leaves({"observation": spec.observation})
        self._bare = [leaf.name for leaf in self._seen] == ["observation"]  # an array, not a tree of them
        rest = [("reward", np.float32), ("discount", np.float32), ("step_type", np.int8)]
        self._steps = [*self._seen, *(leaf for name, dtype in rest for leaf in _leaves({name: Shape((), dtype)}))]
        (self._action,) = _leaves({"action": spec.action.zero()})
        self.step_bytes, self.action_bytes = sum(leaf.nbytes for leaf in self._steps), self._action.nbytes
        self.no_actions = np.zeros((0, *self._action.shape), self._action.dtype)
        self._actions = spec.action.n if isinstance(spec.action, Discrete) else None
        number_of = f" < {self._actions}" if self._actions else ""
        lines = [*map(_line, self._steps), "->", _line(self._action) + number_of]
        if spec.stack > 1:  # it is one array then, and the first
            lines[0] += f" stack {spec.stack}"
        self.text = "\n".join(lines)
        self.fingerprint = hashlib.sha256(self.text.encode()).digest()

    def encode(self, timestep: TimeStep) -> bytes:
        """TimeStep [K, ...] -> bytes, its action left out."""
        arrays = [*nests.leaves(timestep.observation), timestep.reward, timestep.discount, timestep.step_type]
        return b"".join([np.ascontiguousarray(x, leaf.dtype).data for x, leaf in zip(arrays, self._steps, strict=True)])

    def decode(self, data: bytes | memoryview, before: np.ndarray | None, actions: np.ndarray) -> TimeStep:
        """bytes -> TimeStep [K, ...], whose arrays are the message's own and cannot be written.

        Args:
            data: a message.
            before: the step types that this client sent last, int8 [K]; None if this is its first message.
            actions: what it was told to do then, [K, ...].

        Raises:
            Malformed: another size, numbers that are not finite, or step types that cannot follow.
        """
        count = len(actions)
        if len(data) != count * self.step_bytes:
            raise Malformed(f"{count} time steps are {count * self.step_bytes} bytes, got {len(data)}")
        seen, offset = [], 0
        for leaf in self._seen:
            seen.append(np.ndarray((count, *leaf.shape), leaf.dtype, data, offset))
            offset += count * leaf.nbytes
            if leaf.dtype.kind in "fb":
                _check(seen[-1], leaf.name)
            if leaf.categories is not None and not _all((seen[-1] >= 0) & (seen[-1] < leaf.categories)):
                raise Malformed(f"{leaf.name} must be from 0 to below {leaf.categories}, its categories")
        numbers = np.ndarray((2, count), _NUMBER, data, offset)
        reward, discount = numbers
        if not _all(abs(numbers) <= _LIMITS):
            _check(reward, "reward")
            raise Malformed(f"discount must be from -1 to 1, got {discount.min():g} to {discount.max():g}")
        kinds: Any = np.frombuffer(data, np.int8, count, offset + numbers.nbytes)
        going_on = before is not None and _LAST not in before.tobytes()
        if not (going_on and kinds.tobytes().count(_MID) == count and _all(discount != 0.0)):
            actions = _acted(kinds, before, reward, discount, actions)
        observation = seen[0] if self._bare else nests.filled(self._observation, seen)
        return TimeStep(observation, actions, reward, discount, kinds)

    def encode_actions(self, actions: np.ndarray) -> bytes:
        """Actions [K, ...] -> bytes."""
        return np.ascontiguousarray(actions, self._action.dtype).tobytes()

    def decode_actions(self, data: bytes | memoryview, count: int) -> np.ndarray:
        """bytes -> actions [K, ...].

        Raises:
            Malformed: another size, or actions that there are not.
        """
        if len(data) != count * self._action.nbytes:
            raise Malformed(f"{count} actions are {count * self._action.nbytes} bytes, got {len(data)}")
        actions = np.frombuffer(data, self._action.dtype).reshape(count, *self._action.shape)
        if self._actions is None:
            _check(actions, "action")
        elif not _all((actions >= 0) & (actions < self._actions)):  # native environments may take them for indices
            raise Malformed(f"action must be from 0 to below {self._actions}, got {actions.min()} to {actions.max()}")
        return actions


def _leaves(tree: PyTree) -> list[Leaf]:
    """Arrays by name, their dtypes little-endian."""
    found = []
    for name, x in nests.named(tree):
        dtype, shape = np.dtype(x.dtype).newbyteorder("<"), tuple(x.shape)
        nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
        bounds = getattr(x, "bounds", None)
        bounds = None if bounds in (None, (0, 255)) else bounds
        found.append(Leaf(name, dtype, shape, nbytes, getattr(x, "categories", None), bounds))
    return found


def _line(leaf: Leaf) -> str:
    categories = "" if leaf.categories is None else f" < {leaf.categories}"
    bounds = "" if leaf.bounds is None else f" from {leaf.bounds[0]} to {leaf.bounds[1]}"
    return f"{leaf.name} {leaf.dtype.kind}{leaf.dtype.itemsize}[{','.join(map(str, leaf.shape))}]{categories}{bounds}"


def _acted(
    kinds: np.ndarray, before: np.ndarray | None, reward: np.ndarray, discount: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """The actions that led to these steps: zeros at FIRST."""
    if not _all(kinds.view(np.uint8) <= LAST):
        raise Malformed(f"step_type must be 0, 1 or 2, got {kinds.min()} to {kinds.max()}")
    first = kinds == FIRST
    if not _all(first == (before is None or before == LAST)):
        raise Malformed("FIRST must come at the beginning and after LAST, and nowhere else")
    if reward[first].any():
        raise Malformed(f"the reward at FIRST must be 0, got {reward[first].tolist()}")
    if not _all(discount[first] == 1.0):
        raise Malformed(f"the discount at FIRST must be 1, got {discount[first].tolist()}")
    if not _all((discount != 0.0) | (kinds == LAST)):
        raise Malformed("a discount of 0 must come with LAST, and nowhere else")
    return np.where(first.reshape(-1, *[1] * (actions.ndim - 1)), np.zeros_like(actions), actions)


def _check(array: np.ndarray, name: str) -> None:
    if array.dtype.kind == "f" and not _all(abs(array) <= LARGEST):
        largest = abs(array).max()
        what = f"must be within {LARGEST:g} of 0, got {largest:g}" if np.isfinite(largest) else "is not finite"
        raise Malformed(f"{name} {what}")
    if array.dtype.kind == "b" and not _all(array.view(np.uint8) <= 1):
        raise Malformed(f"{name} must be 0 or 1")
    if name == "observation/legal" and not array.any(axis=1).all():
        raise Malformed("no action is legal")


def _all(mask: np.ndarray) -> bool:
    """Whether all are true; unlike NumPy's reductions, it does not let go of the interpreter's lock on the way.

    Another thread takes the lock then, and a step waits some 50 us for it, several times.
    """
    return b"\0" not in mask.tobytes()
