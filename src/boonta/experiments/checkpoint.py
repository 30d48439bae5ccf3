"""Checkpoints that are whole or are not there, and that notice when they are no longer what was saved."""

import errno
import itertools
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from boonta.core import random, trees
from boonta.core.types import PyTree
from boonta.experiments import agreement, files
from boonta.experiments.own_folder import OwnFolder

FOLDER = "checkpoints"
SUMS = "checksums.json"
_ASIDE = "replaced-"  # before the name of a checkpoint while another is saved in its place
_PATTERN = set("*?[\\")  # what Orbax takes for a pattern in a path, and then leaves a checkpoint half made
_LOWEST = -1e300  # finite: JSON has no infinity


class Restored(NamedTuple):
    """A checkpoint's state, its facts, and what had to be passed over to get to it."""

    state: PyTree
    facts: dict[str, Any]
    passed_over: list[str]


class Checkpoints:
    """The checkpoints of a run, one folder a step count: the latest few, and the best.

    Args:
        folder: the run folder.
        latest: how many of the latest to keep.
    """

    def __init__(self, folder: Path, latest: int = 3) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)  # orbax tells every step of a save
        self._folder, self._alias = folder.resolve() / FOLDER, None
        self._place = self._folder  # as Orbax knows it
        if _PATTERN & set(str(self._place)):
            self._alias = OwnFolder()
            self._place = self._alias.path / FOLDER
            self._folder.mkdir(parents=True, exist_ok=True)
            self._place.symlink_to(self._folder)
        policy = keep.AnyPreservationPolicy(
            [keep.LatestN(latest), keep.BestN(get_metric_fn=lambda metrics: metrics["score"], n=1)]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            best_fn=lambda metrics: metrics["score"],  # without it scores are not written, and best means latest
            enable_async_checkpointing=False,
        )
        self._manager = ocp.CheckpointManager(self._place, options=options)

    def save(self, env_steps: int, state: PyTree, facts: dict[str, Any], score: float | None) -> None:
        """Save under `env_steps`, in place of what is there. `score` says which is the best; None for not evaluated.

        Raises:
            OSError: it could not be written, or not be found again, or hosts that should hold the same do not; nothing
                of it is left, and what was there is intact.
        """
        data = random.without_keys(state)
        checksum = _checksum(data)
        if checksum is not None and not agreement.same(checksum):
            raise OSError(f"the checkpoint at step {env_steps} was not saved: hosts no longer hold the same state")
        facts = facts | {"env_steps": env_steps, "score": score, "checksum": checksum}
        args = ocp.args.Composite(state=ocp.args.StandardSave(_without_empty(data)), facts=ocp.args.JsonSave(facts))
        rank = _LOWEST if score is None or np.isnan(score) else score
        try:
            # All hosts have looked before the first one moves anything.
            if replaces := agreement.together(env_steps in self.steps()):
                self._rename(str(env_steps), _ASIDE + str(env_steps))
            with _told_once():
                self._manager.save(env_steps, args=args, metrics={"score": rank})
                self._manager.wait_until_finished()
            if jax.process_index() == 0:
                _check_index(self._place / str(env_steps) / "state", {*trees.named(_without_empty(data))})
                files.write_json(self._folder / str(env_steps) / SUMS, _sums(self._folder / str(env_steps)))
                if replaces:
                    shutil.rmtree(self._folder / f"{_ASIDE}{env_steps}")
        except Exception as error:  # whatever the storage layer makes of a full disk
            for left in [self._folder / str(env_steps), *self._folder.glob(f"{env_steps}.*")]:
                shutil.rmtree(left, ignore_errors=True)
            self._put_back()
            if agreement.lost(error):
                raise
            raise OSError(
                f"the checkpoint at step {env_steps} could not be saved in {self._folder}: {_cause(error)}"
            ) from error

    def restore(self, like: PyTree | None, which: int | str = "latest") -> Restored:
        """A checkpoint, falling back to the one before where a file is truncated or damaged.

        Args:
            like: the state, or its shapes, with the shardings to restore to; None for all arrays as they were saved, by
                name, keys as bare numbers, on one device.
            which: "latest", "best", or a step count, from which nothing falls back.

        Raises:
            FileNotFoundError: there is none.
            ValueError: none of them can be read.
        """
        steps = self.steps()
        if not steps:
            raise FileNotFoundError(f"there is no checkpoint in {self._folder}")
        if which == "best":
            steps = [self._manager.best_step() or steps[-1]]
        elif which != "latest":
            if str(which) not in map(str, steps):
                there = ", ".join(map(str, steps))
                raise FileNotFoundError(
                    f"there is no checkpoint {which!r} in {self._folder}; allowed: latest, best, {there}"
                )
            steps = [int(which)]
        passed_over: list[str] = []
        for step in reversed(steps):
            try:
                return Restored(*self._read(step, like), passed_over)
            except Exception as error:  # any damage takes any form
                passed_over.append(f"checkpoint {step} cannot be read ({type(error).__name__}: {_first_line(error)})")
        if like is not None and (different := self._different(steps[-1], like)):
            raise ValueError(
                f"the checkpoints in {self._folder} were made by another version of Boonta or of the agent, which "
                f"keeps other things ({different}); go on with that version, which run.json names, or start a new run"
            )
        raise ValueError(f"no checkpoint in {self._folder} can be read: {'; '.join(passed_over)}")

    def _different(self, step: int, like: PyTree) -> str:
        """An array that a checkpoint has and the state has not, or the other way round; "" if none, or if damaged."""
        folder = self._folder / str(step)
        if not (folder / SUMS).exists() or files.read_json(folder / SUMS) != _sums(folder):
            return ""
        leaves = files.read_json(folder / "state" / "_METADATA")["tree_metadata"].values()  # Orbax's own
        arrays = [leaf["key_metadata"] for leaf in leaves if not leaf["value_metadata"]["skip_deserialize"]]
        there = {"/".join(str(part["key"]) for part in keys) for keys in arrays}
        wanted = {*trees.named(_without_empty(_without_keys_shape(like)))}
        return next((f"{name} is {'new' if name in wanted else 'no more'}" for name in sorted(there ^ wanted)), "")

    def recover(self) -> None:
        """Put back what was being replaced when an earlier process died. On all hosts, before a run goes on."""
        self._put_back()
        agreement.meet("replaced checkpoints put back")
        self._manager.reload()

    def _put_back(self) -> None:
        for aside in self._folder.glob(f"{_ASIDE}*") if jax.process_index() == 0 else ():
            place = self._folder / aside.name.removeprefix(_ASIDE)
            if (place / SUMS).exists():  # it was replaced
                shutil.rmtree(aside)
            else:
                shutil.rmtree(place, ignore_errors=True)
                aside.rename(place)

    def _rename(self, old: str, new: str) -> None:
        """On all hosts."""
        if jax.process_index() == 0:
            (self._folder / old).rename(self._folder / new)
        agreement.meet(f"{old} renamed")
        self._manager.reload()

    def set_aside(self, after: int) -> None:
        """Rename the checkpoints later than `after`: they are damaged, and their places are needed. On all hosts."""
        for step in self.steps() if jax.process_index() == 0 else ():
            if step > after:
                names = (f"damaged-{step}{'+' * n}" for n in itertools.count())
                free = next(name for name in names if not (self._folder / name).exists())
                (self._folder / str(step)).rename(self._folder / free)
        agreement.meet("damaged checkpoints set aside")
        self._manager.reload()

    def steps(self) -> list[int]:
        """The step counts there are, ascending."""
        return sorted(self._manager.all_steps(read=True))

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()
        if self._alias:
            self._alias.close()

    def _read(self, step: int, like: PyTree | None) -> tuple[PyTree, dict[str, Any]]:
        folder = self._folder / str(step)
        # Files first: tensorstore answers a damaged one with tracebacks from its threads. There are no sums where the
        # run was killed just before they were written; the checksum of the state, below, holds there too.
        wanted = files.read_json(folder / SUMS) if (folder / SUMS).exists() else {}
        found = _sums(folder)
        for name, value in wanted.items():
            if found.get(name) != value:
                raise ValueError(f"{name} is {'damaged' if name in found else 'missing'}")
        if like is None:
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            with ocp.StandardCheckpointer() as reader:
                tree = reader.metadata(self._place / str(step) / "state").item_metadata.tree
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), dict(tree))
        else:
            shapes = jax.tree.map(_shape, _without_keys_shape(like))
        args = ocp.args.Composite(state=ocp.args.StandardRestore(_without_empty(shapes)), facts=ocp.args.JsonRestore())
        read = self._manager.restore(step, args=args)
        facts, state = dict(read["facts"]), _with_empty(read["state"], shapes)
        if like is None:  # by name, in another order; the files are those that were written
            return state, facts
        checksum = _checksum(state)
        if None not in (checksum, facts["checksum"]) and checksum != facts["checksum"]:
            raise ValueError(f"its checksum is {checksum}, but {facts['checksum']} was saved")
        return random.with_keys(state, like), facts


def _check_index(folder: Path, names: set[str]) -> None:
    """Check that the arrays of these names can be found in a checkpoint's state.

    Raises:
        ValueError: one of them cannot.
    """
    base = {"driver": "file", "path": f"{folder}/"}
    keys = ts.KvStore.open({"driver": "ocdbt", "base": base}).result().list().result()
    there = {key.decode().rpartition("/")[0].replace("/", ".") for key in keys}  # names have slashes of their own
    if missing := sorted({name.replace("/", ".") for name in names} - there):
        raise ValueError(f"what was written has no {missing[0]}")


def _without_keys_shape(tree: PyTree) -> PyTree:
    def one(x: Any) -> Any:
        if not random.is_key(x):
            return x
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(x.shape, x.dtype))
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=x.sharding)

    return jax.tree.map(one, tree)


def _without_empty(tree: PyTree) -> PyTree:
    """None in place of arrays without entries, which Orbax refuses; states of physics have some."""
    return jax.tree.map(lambda x: x if x.size else None, tree)


def _with_empty(tree: PyTree, shapes: PyTree) -> PyTree:
    """The inverse of `_without_empty`."""

    def one(x: Any, shape: jax.ShapeDtypeStruct | None) -> Any:
        if x is not None or shape is None:
            return x
        empty = np.zeros(shape.shape, shape.dtype)
        return jax.device_put(empty, shape.sharding)

    return jax.tree.map(one, tree, shapes, is_leaf=lambda x: x is None)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _checksum(tree: PyTree) -> int | None:
    """CRC-32 over all leaves; None where this process does not hold them all."""
    leaves = jax.tree.leaves(tree)
    if not all(getattr(x, "is_fully_addressable", True) or x.is_fully_replicated for x in leaves):
        return None
    value = 0
    for leaf in leaves:
        value = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), value)
    return value


def _sums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file of a checkpoint's items, by its path."""
    there = sorted(path for item in ("state", "facts") for path in (folder / item).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): zlib.crc32(path.read_bytes()) for path in there}


@contextmanager
def _told_once() -> Iterator[None]:
    """Without the tracebacks that threads of Orbax and tensorstore write, dozens of them, of what is then raised.

    Those of a save that failed go on for a while, so nothing is undone then.
    """
    logger, hook = logging.getLogger("absl"), sys.unraisablehook
    level = logger.level

    def quiet(told: Any) -> None:
        if "Event loop is closed" not in str(told.exc_value):
            hook(told)

    logger.setLevel(logging.CRITICAL)
    sys.unraisablehook = quiet
    yield
    logger.setLevel(level)
    sys.unraisablehook = hook


def _cause(error: Exception) -> str:
    """In one line; tensorstore wraps a full disk in the names of five folders."""
    full = os.strerror(errno.ENOSPC)
    return full if full in str(error) else _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
