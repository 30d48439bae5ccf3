"""Parts of a batch of Python environments, which workers step: what all of them share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from boonta.core import host, nests
from boonta.core.faults import Unclosed
from boonta.core.spec import Shape
from boonta.core.types import PyTree, TimeStep
from boonta.envs.errors import Unfit, Unsuitable, closing

Part = Callable[[Sequence[int], TimeStep], host.Batch]  # environments of these seeds, which write into these arrays

CLOSING = 5.0  # seconds that closing waits for workers


class Died(RuntimeError):
    """A worker raised, ended, or did not answer in time; the message says which."""


def clipped(low: Any, high: Any, dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """From an action float32 to the same in a space's own dtype, inside its bounds; whole numbers are rounded to."""
    low, high = np.asarray(low, dtype), np.asarray(high, dtype)
    if not np.issubdtype(dtype, np.integer):
        return lambda action: np.asarray(np.clip(action.astype(dtype), low, high))

    def whole(action: np.ndarray) -> np.ndarray:
        x = np.rint(action.astype(np.float64))
        with np.errstate(invalid="ignore"):  # bounds of int64 are beyond what floats say exactly
            return np.where(x <= low, low, np.where(x >= high, high, x.astype(dtype)))

    return whole


def bounds(low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds of a `Shape`."""
    return entries(low), entries(high)


def entries(values: Any) -> Any:
    """One number where all are the same, else nested tuples."""
    values = np.asarray(values)
    return _tuples(values.tolist()) if values.size and (values != values.flat[0]).any() else values.flat[0].item()


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


def same_kind(name: str, path: str, keys: Iterable[Any]) -> None:
    """
    Raises:
        Unsuitable: keys of several types, which are in no order.
    """
    if len(kinds := {type(key).__name__ for key in keys}) > 1:
        raise Unsuitable(f"{name} has the {path} with keys of several types ({', '.join(sorted(kinds))}); use strings")


def some_numbers(name: str, shape: tuple[int, ...]) -> None:
    """
    Raises:
        Unsuitable: an action has no numbers.
    """
    if 0 in shape:
        raise Unsuitable(f"{name} has actions of shape {list(shape)}, in which there is no number; there must be one")


MASKS = ("legal", "action_mask")  # what the mask of legal actions may be called


def renamed(observation: Any) -> Any:
    """An observation, or its spaces, whose `action_mask` is called `legal`."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return observation
    return {"legal" if key == "action_mask" else key: part for key, part in observation.items()}


def mask_remarks(name: str, observation: Any) -> list[str]:
    """What is to be said of an observation's spaces whose mask is called otherwise than ours."""
    if not isinstance(observation, Mapping) or "action_mask" not in observation:
        return []
    return [f"{name}: observation/action_mask says which actions are legal, and is not read otherwise"]


def legal_at(mask: np.ndarray, i: int, over: bool) -> None:
    """Hold the mask of environment i of [E, A] to what masks are: all True at a true end, where nothing follows.

    Raises:
        Unfit: no action is legal elsewhere.
    """
    if over:
        mask[i] = True
    elif not mask[i].any():
        raise Unfit("observation/legal, the mask of legal actions, must leave one at least, got none")


def with_mask(name: str, observation: PyTree, actions: int) -> PyTree:
    """The observation's spec with its mask of legal actions called `legal`, as bool, where there are discrete actions.

    Raises:
        Unsuitable: there are two masks, or it is not one of so many actions.
    """
    masks = [key for key in MASKS if isinstance(observation, dict) and key in observation]
    if not masks:
        return observation
    if len(masks) == 2:
        raise Unsuitable(f"{name} has both observation/legal and observation/action_mask; one is the mask")
    (key,) = masks
    mask = observation[key]
    if not actions or getattr(mask, "shape", None) != (actions,):
        got = f"of shape {list(mask.shape)}" if hasattr(mask, "shape") else f"{mask!r}"
        wanted = f"[{actions}], one for each action" if actions else "discrete actions beside it"
        raise Unsuitable(f"{name}: observation/{key} is the mask of legal actions and needs {wanted}, got it {got}")
    return renamed(observation) | {"legal": Shape((actions,), np.bool_)}


def made(name: str, factories: list[Callable[[], Any]]) -> list[Any]:
    """What they make; where one fails, those before it are closed: they may hold what it needs when it is made anew."""
    there: list[Any] = []
    try:
        for factory in factories:
            there.append(factory())
    except BaseException:
        with suppress(Unclosed):  # what went wrong before says more
            close_all(name, there)
        raise
    return there


def closed_after(name: str, one: Any, trial: Callable[[], Any]) -> Any:
    """What a trial of an environment finds, which is closed then; that it could not be is one of the remarks."""
    try:
        found = trial()
    except BaseException:
        with suppress(Exception):  # what went wrong before says more
            one.close()
        raise
    try:
        one.close()
    except Exception as error:  # whatever the environment raises
        return found._replace(remarks=(*found.remarks, closing(name, error)))
    return found


def close_all(name: str, environments: list[Any]) -> None:
    """Close and forget all of them, whatever one of them raises; then tell of the first that could not be closed.

    Raises:
        Unclosed: there was one.
    """
    failures = []
    while environments:
        try:
            environments.pop().close()
        except Exception as error:
            failures.append(error)
    if failures:
        raise Unclosed(closing(name, failures[0])) from failures[0]


def slices(count: int, workers: int) -> list[slice]:
    """Which of so many environments each worker has."""
    bounds = np.linspace(0, count, min(workers, count) + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def view(out: TimeStep, one: slice) -> TimeStep:
    """A worker's share of the arrays."""
    return nests.mapped(lambda x: x[one], out)
