"""Metrics of iterations, summed as they come: memory stays flat, however many there are between two log lines."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from boonta.core.episodes import Finished
from boonta.core.types import Array

LEARNERS = ("loss/", "policy/", "value/")  # what learners report begins with one of these
LARGEST = "_max"  # names of which the largest counts, not the mean, end in this


class Totals(NamedTuple):
    """What iterations come to; scalars, or [M] of the members of a population.

    Attributes:
        iterations: how many.
        made: updates.
        bad: the first `health` that is not 0; 0 if all is finite.
        bad_at: in which iteration it was, from 1.
        finished: the episodes that ended.
        sums: of each metric; of those that end in `_max`, the largest.
        weights: over how many each sum is.
        levels: of other metrics, what was so at the end.
    """

    iterations: Array
    made: Array
    bad: Array
    bad_at: Array
    finished: Finished
    sums: dict[str, Array]
    weights: dict[str, Array]
    levels: dict[str, Array]


def once(metrics: Mapping[str, Any], xp: Any = np) -> Totals:
    """Those of one iteration. What learners report counts where an update was made; elsewhere it means nothing.

    Args:
        metrics: scalars by name: `health`, `made`, the fields of `Finished`, and any others.
        xp: numpy, for sums in float64; or jax.numpy inside a compiled program, for sums in float32.
    """
    kind = np.float64 if xp is np else np.float32
    number = lambda x: xp.asarray(x, kind)  # noqa: E731
    bad, made, one = xp.asarray(metrics["health"]), xp.asarray(metrics["made"]), xp.ones((), np.int32)
    learned = made > 0
    sums, weights = {}, {}
    for name in sorted(metrics.keys() - {"health", "made", *Finished._fields}):  # or no program is found in a cache
        counts = learned if name.startswith(LEARNERS) else xp.ones((), bool)
        sums[name] = xp.where(counts, number(metrics[name]), _nothing(name))
        weights[name] = number(counts)
    finished = Finished(*(number(metrics[name]) for name in Finished._fields))
    return Totals(one, made, bad, (bad > 0) * one, finished, sums, weights, {})


def merge(one: Totals, other: Totals, xp: Any = np) -> Totals:
    """Those of some iterations and of others that follow; the squares by the parallel form of Welford's method."""
    a, b = one.finished, other.finished
    count = a.count + b.count
    apart = a.total / xp.maximum(a.count, 1) - b.total / xp.maximum(b.count, 1)
    squares = a.squares + b.squares + apart**2 * (a.count * b.count / xp.maximum(count, 1))
    combine = lambda name: xp.maximum if name.endswith(LARGEST) else xp.add  # noqa: E731
    later = xp.where(other.bad > 0, one.iterations + other.bad_at, 0)
    return Totals(
        one.iterations + other.iterations,
        one.made + other.made,
        xp.where(one.bad > 0, one.bad, other.bad),
        xp.where(one.bad > 0, one.bad_at, later),
        Finished(count, a.total + b.total, squares, a.length + b.length),
        {name: combine(name)(x, other.sums[name]) for name, x in one.sums.items()},
        {name: x + other.weights[name] for name, x in one.weights.items()},
        other.levels,
    )


def nothing(like: Totals) -> Totals:
    """Those of no iteration, with these names, shapes and dtypes."""
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    return blank._replace(sums={name: np.full(x.shape, _nothing(name), x.dtype) for name, x in like.sums.items()})


def after(so_far: Totals | None, new: Totals) -> Totals:
    """Those of before and of now."""
    return new if so_far is None else merge(fitted(so_far, new), new)


def fitted(totals: Totals, like: Totals) -> Totals:
    """With the metrics of others: what was counted stays, and sums of other metrics, of another version, are let go."""
    if totals.sums.keys() == like.sums.keys():
        return totals
    blank = nothing(like)
    return totals._replace(sums=blank.sums, weights=blank.weights)


def with_shares(totals: Totals, shares: Mapping[str, float], levels: Mapping[str, float]) -> Totals:
    """With metrics that were the same in all iterations, NaN where there is nothing to tell, and with levels."""
    count, sums, weights = float(totals.iterations), {}, {}
    for name, value in shares.items():
        known = value == value
        whole = value if name.endswith(LARGEST) else value * count
        sums[name], weights[name] = np.float64(whole if known else _nothing(name)), np.float64(count * known)
    there = {name: np.float64(x) for name, x in levels.items()}
    return totals._replace(sums=totals.sums | sums, weights=totals.weights | weights, levels=there)  # type: ignore[arg-type]


def alike(
    iterations: int, made: int, bad: int, finished: Finished, shares: Mapping[str, float], levels: Mapping[str, float]
) -> Totals:
    """Those of iterations of which only the whole is known."""
    found: Any = Totals(iterations, made, bad, int(bad > 0), finished, {}, {}, {})  # type: ignore[arg-type]
    return with_shares(found, shares, levels)


def of_one_member(totals: Totals) -> Totals:
    """Scalars as [1]."""
    return jax.tree.map(lambda x: np.asarray(x)[None], totals)


def means(totals: Totals, member: int = 0) -> dict[str, float]:
    """A number for each metric of a member; NaN where there was nothing to average."""
    found = {}
    for name, total in totals.sums.items():
        weight = float(totals.weights[name][member])
        whole = 1.0 if name.endswith(LARGEST) else weight
        found[name] = float(total[member]) / whole if weight else float("nan")
    return found | {name: float(x[member]) for name, x in totals.levels.items()}


def to_json(found: Totals | None) -> dict[str, Any] | None:
    """Totals [M] as JSON holds them."""
    if found is None:
        return None
    plain = jax.tree.map(lambda x: np.asarray(x).tolist(), found)
    return plain._asdict() | {"finished": plain.finished._asdict()}


def from_json(written: dict[str, Any] | None) -> Totals | None:
    """The inverse of `to_json`."""
    if written is None:
        return None
    arrays = jax.tree.map(np.asarray, written, is_leaf=lambda x: isinstance(x, list))
    return Totals(**arrays | {"finished": Finished(**arrays["finished"])})


def _nothing(name: str) -> float:
    return -np.inf if name.endswith(LARGEST) else 0.0
