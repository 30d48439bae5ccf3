"""Episode returns and lengths, read off the stream of time steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.types import Array, TimeStep


class Episode(NamedTuple):
    """The episode one environment is in: sum of rewards so far (float32) and steps so far (int32)."""

    total: Array
    length: Array


class Finished(NamedTuple):
    """Sums over the episodes that ended, all float32 scalars: how many, returns, squared returns, steps."""

    count: Array
    total: Array
    squares: Array
    length: Array


def begin() -> Episode:
    """An episode at FIRST."""
    return Episode(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32))


def follow(episode: Episode, timestep: TimeStep) -> tuple[Episode, Finished]:
    """Add the next time step of ONE environment, which is any kind of step; what finished with it comes back."""
    ongoing = ~timestep.first()
    total = jnp.where(ongoing, episode.total + timestep.reward, 0.0)
    length = jnp.where(ongoing, episode.length + 1, 0)
    done = timestep.last().astype(jnp.float32)
    return Episode(total, length), Finished(done, done * total, done * total**2, done * length)


def summary(finished: Finished) -> dict[str, Array]:
    """Mean and spread of the return, mean length and count; NaN means where no episode ended."""
    count = finished.count
    mean = finished.total / count
    return {
        "episode/return_mean": mean,
        "episode/return_std": jnp.sqrt(jnp.maximum(finished.squares / count - mean**2, 0.0)),
        "episode/length_mean": finished.length / count,
        "episode/count": count,
    }


def add(left: Finished, right: Finished) -> Finished:
    """Both together."""
    return jax.tree.map(jnp.add, left, right)
