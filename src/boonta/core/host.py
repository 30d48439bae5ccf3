"""Environments that step on the host: a batch of actions in, a batch of time steps out, as NumPy arrays."""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from boonta.core import nests
from boonta.core.settings import WorkerKind
from boonta.core.spec import Discrete, Shape, Spec
from boonta.core.types import FIRST, TimeStep


class Batch(Protocol):
    """E environments that step together. After LAST comes FIRST, and the action given there is ignored.

    The arrays that `reset` and `step` return may be overwritten by the next call.
    """

    def reset(self) -> TimeStep:
        """TimeStep [E, ...], all FIRST. Called before any step; again only where the host is `repeatable`."""
        ...

    def step(self, action: np.ndarray) -> TimeStep:
        """Actions [E, ...] in, TimeStep [E, ...] out."""
        ...

    def frame(self) -> np.ndarray:
        """uint8 [H, W, 3], what the first environment looks like.

        Raises:
            ValueError: it cannot be drawn.
        """
        ...

    def close(self) -> None:
        """Give everything back; may be called twice, and after a failure."""
        ...


class Workers(NamedTuple):
    """How a batch steps slow environments; those with a pool of their own take only the count.

    Attributes:
        kind: `serial`, `threads`, `processes`, `vectorized` where the environment has such a form, or `auto` for that
            form or for what a measurement finds fastest.
        count: threads or processes; 0 for one per core.
        timeout: seconds that one answer of a process may take, construction included.
    """

    kind: WorkerKind = "auto"
    count: int = 0
    timeout: float = 60.0


class Host(NamedTuple):
    """A kind of environment that steps on the host.

    Attributes:
        spec: the static facts of one environment.
        make: (indices int [E], seed, life, Workers) -> Batch of the environments with these global indices; `life`
            counts how often they were made anew. No two of index, seed and life share a random stream.
        choose: (E, Workers) -> Workers that are not `auto`, and why in words; None where there is nothing to choose.
        examiner: what evaluation plays instead, where this one changes the game to help learning; None for itself.
        drawn: makes one whose batches answer `frame`; None where all do.
        remarks: what a user should know of them.
        repeatable: whether a batch that is reset again begins the same episodes as before.
    """

    spec: Spec
    make: Callable[[np.ndarray, int, int, Workers], Batch]
    choose: Callable[[int, Workers], tuple[Workers, str]] | None = None
    examiner: "Host | None" = None
    drawn: "Callable[[], Host] | None" = None
    remarks: tuple[str, ...] = ()
    repeatable: bool = False


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def random_actions(spec: Spec, generator: np.random.Generator, timestep: TimeStep) -> np.ndarray:
    """Actions [count, ...] at a TimeStep [count, ...], uniform: legal ones, or all that agents reach."""
    count = len(timestep.reward)
    if isinstance(spec.action, Discrete):
        seen = timestep.observation
        if isinstance(seen, Mapping) and "legal" in seen:
            return np.argmax(np.where(seen["legal"], generator.random((count, spec.action.n)), -1.0), axis=-1)
        return generator.integers(spec.action.n, size=count)
    low, high = spec.action.reach()
    return generator.uniform(low, high, (count, *spec.action.shape)).astype(np.float32)


def at_random(spec: Spec, batch: Batch, generator: np.random.Generator) -> Callable[[], TimeStep]:
    """Reset the environments; what makes a step of all with random actions, as often as it is called."""
    timestep = batch.reset()

    def step() -> TimeStep:
        nonlocal timestep
        timestep = batch.step(random_actions(spec, generator, timestep))
        return timestep

    return step


def seed_of(seed: int, index: int, life: int) -> int:
    """A seed of 31 bits for an environment, different for every triple but by chance."""
    return int(np.random.SeedSequence([seed, index, life]).generate_state(1)[0] >> 1)


def empty(spec: Spec, count: int) -> TimeStep:
    """TimeStep [count, ...] of zeros at FIRST, as NumPy arrays that can be written."""

    def zeros(shape: Shape | np.ndarray) -> np.ndarray:
        return np.zeros((count, *shape.shape), shape.dtype)

    return TimeStep(
        observation=nests.mapped(zeros, spec.observation),
        action=zeros(spec.action.zero()),
        reward=np.zeros(count, np.float32),  # type: ignore[arg-type]
        discount=np.ones(count, np.float32),  # type: ignore[arg-type]
        step_type=np.full(count, FIRST, np.int8),  # type: ignore[arg-type]
    )
