"""Episode returns and lengths, read off the stream of time steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.types import FIRST, LAST, Array


class Episode(NamedTuple):
    """The episode one environment is in: sum of rewards so far (float32) and steps so far (int32)."""

    total: Array
    length: Array


class Finished(NamedTuple):
    """The episodes that ended, all float32 scalars.

    Attributes:
        count: how many.
        total: sum of their returns.
        squares: sum of the squared distances of their returns from their mean.
        length: sum of their steps.
    """

    count: Array
    total: Array
    squares: Array
    length: Array


def begin() -> Episode:
    """An episode at FIRST."""
    return Episode(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def follow(episode: Episode, reward: Array, step_type: Array) -> tuple[Episode, Finished]:
    """Add the next T time steps, of any kind; what finished with them comes back, summed.

    Args:
        episode: Episode [...], of one environment or of many.
        reward: float32 [T, ...].
        step_type: int8 [T, ...].
    """

    def body(episode: Episode, step: tuple[Array, Array]) -> tuple[Episode, Episode]:
        reward, ongoing = step
        total = jnp.where(ongoing, episode.total + reward, 0.0)
        episode = Episode(total, jnp.where(ongoing, episode.length + 1, 0))
        return episode, episode

    episode, each = jax.lax.scan(body, episode, (reward, step_type != FIRST), unroll=16)
    done = (step_type == LAST).astype(jnp.float32)
    ended = Finished(done, done * each.total, jnp.zeros_like(done), done * each.length)
    return episode, merge(jax.tree.map(jnp.ravel, ended))


def summary(finished: Finished) -> dict[str, np.ndarray]:
    """Mean and spread of the return, mean length and count, on the host; NaN means where no episode ended."""
    count, total, squares, length = map(np.asarray, finished)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "episode/return_mean": total / count,
            "episode/return_std": np.sqrt(squares / count),
            "episode/length_mean": length / count,
            "episode/count": count,
        }


def merge(parts: Finished) -> Finished:
    """Many [K] as one; squares by the parallel form of Welford's method (Chan et al. 1979)."""
    count, total = jnp.sum(parts.count), jnp.sum(parts.total)
    apart = parts.total / jnp.maximum(parts.count, 1.0) - total / jnp.maximum(count, 1.0)
    squares = jnp.sum(parts.squares + parts.count * apart**2)
    return Finished(count, total, squares, jnp.sum(parts.length))


def merge_all(parts: list[Finished]) -> Finished:
    """`merge` of a list, which may be empty, with NumPy."""
    count, total, squares, length = np.asarray(parts, np.float64).reshape(-1, 4).T
    apart = total / np.maximum(count, 1.0) - total.sum() / max(count.sum(), 1.0)
    sums = (count.sum(), total.sum(), (squares + count * apart**2).sum(), length.sum())
    return Finished(*(np.float32(x) for x in sums))  # type: ignore[arg-type]
