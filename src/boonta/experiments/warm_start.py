"""A new run that begins with what another has learned: its networks and its normalising statistics."""

import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from boonta.core import random, trees
from boonta.core.types import Params, PyTree
from boonta.experiments import config as configuration
from boonta.experiments import systems
from boonta.experiments.checkpoint import Checkpoints
from boonta.experiments.systems import protocol

STATISTICS = ("normalizer", "statistics")  # groups of parameters that are no networks


class Source(NamedTuple):
    """Where a run begins.

    Attributes:
        folder: of the other run.
        checkpoint: latest, best, or a step count.
        member: of its population.
    """

    folder: Path
    checkpoint: str = "latest"
    member: int = 0


def networks_of(source: Source, system: systems.System) -> tuple[Params, list[str]]:
    """What fits of another run's parameters, None elsewhere; and the names of the parts that do not fit.

    Parts are the networks of a group of parameters, or statistics, and are taken whole. Settings, and numbers that
    change over a run, are the new run's own.

    Raises:
        FileNotFoundError, ValueError: no such run, checkpoint or member, or no network fits.
    """
    theirs, ours = _params(source, system), jax.eval_shape(system.agent.init, random.key(0))
    fits, others, networks = {name: _none_of(group) for name, group in ours.items()}, [], 0
    for name, group in ours.items():
        if all(x.ndim == 0 for x in jax.tree.leaves(group)):
            continue
        for part, new in _parts(group).items():
            old = theirs.get(name, {})
            found = _like(new, old.get(part, {}) if part else old)
            if found is None:
                others.append(f"{name}/{part}" if part else name)
                continue
            networks += name not in STATISTICS
            fits[name] = fits[name] | {part: found} if part else found
    if not networks:
        raise ValueError(
            f"--from {source.folder}: none of its networks has the shape of one of this run's ({', '.join(others)}); "
            "name a run of this agent, with the same settings of its networks"
        )
    return fits, others


def _params(source: Source, system: systems.System) -> dict[str, PyTree]:
    """Those of a member of the other run, by name."""
    if not (source.folder / "config.toml").is_file():
        raise FileNotFoundError(f"--from {source.folder}: not a run folder, it has no config.toml")
    config = configuration.load(source.folder / "config.toml")
    protocol.check_reading(source.folder, config, system)
    count = len(configuration.members(config))
    if not 0 <= source.member < count:
        raise ValueError(f"--member must be 0 to {count - 1} of --from {source.folder}, got {source.member}")
    checkpoints = Checkpoints(source.folder, config.run.keep)
    try:
        found = checkpoints.restore(None, source.checkpoint)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--from {source.folder}: {error}") from error
    finally:
        checkpoints.close()
    for message in found.passed_over:
        print(f"boonta: WARNING: {message}; taking the one before", file=sys.stderr)
    params = found.state["params"]
    if config.architecture == "anakin":  # which has a population
        params = jax.tree.map(lambda x: x[source.member], params)
    return params


def _none_of(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda _: None, tree)


def _parts(group: PyTree) -> dict[str, PyTree]:
    """The networks of a group of parameters by name; all of it under "" where it is one."""
    return dict(group) if isinstance(group, dict) and len(group) > 1 else {"": group}


def _like(new: PyTree, old: PyTree) -> PyTree | None:
    """The arrays of the old in the structure of the new, where names, shapes and dtypes are the same; else None."""
    there, wanted = trees.named(old), trees.named(new)
    alike = lambda name, x: there[name].shape == x.shape and there[name].dtype == x.dtype  # noqa: E731
    if there.keys() != wanted.keys() or not all(alike(name, x) for name, x in wanted.items()):
        return None
    return jax.tree.unflatten(jax.tree.structure(new), [np.asarray(there[name]) for name in wanted])
