"""The replays of a run on disk: those of its latest checkpoint, for a run that goes on."""

import os
import shutil
import zipfile
from pathlib import Path

import jax
import numpy as np

from boonta.core.types import PyTree
from boonta.experiments import agreement

FOLDER = "replay"


class Replays:
    """What learners have to learn from, one folder a step count, of which only the latest outlives its successor.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve() / FOLDER

    def save(self, env_steps: int, replays: PyTree) -> None:
        """Write what this host has of them. On all hosts.

        Raises:
            OSError: it could not be written; nothing of it is left.
        """
        place = self._file(env_steps)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(".tmp")
        parts = {f"{i}.{k}": x for i, leaf in enumerate(jax.tree.leaves(replays)) for k, x in enumerate(_parts(leaf))}
        try:
            with beside.open("wb") as file:
                np.savez(file, **parts)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise OSError(f"the replay at step {env_steps} could not be saved in {place.parent}: {error}") from error

    def forget_all_but(self, env_steps: int) -> None:
        """Remove those of other steps, once all hosts have theirs of this one."""
        agreement.meet(f"replay at {env_steps}")
        if jax.process_index() == 0:
            for other in self._folder.iterdir():
                if other.name != str(env_steps):
                    shutil.rmtree(other)

    def restore(self, env_steps: int, like: PyTree) -> tuple[PyTree, str | None]:
        """Those of this step, in place of `like`, whose arrays are used up; or `like` itself, and why. On all hosts."""
        try:
            whole, why = self._sound(self._file(env_steps), like), None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            whole, why = False, f"{type(error).__name__}: {error}"
        if not agreement.together(whole):
            return like, why or "another host has none"
        leaves, structure = jax.tree.flatten(like)
        with np.load(self._file(env_steps), allow_pickle=False) as data:
            return structure.unflatten([_put(leaf, i, data) for i, leaf in enumerate(leaves)]), None

    def _file(self, env_steps: int) -> Path:
        return self._folder / str(env_steps) / f"host-{jax.process_index()}.npz"

    def _sound(self, path: Path, like: PyTree) -> bool:
        with zipfile.ZipFile(path) as archive:
            if bad := archive.testzip():
                raise ValueError(f"{path}: {bad} is damaged")
        with np.load(path, allow_pickle=False) as data:
            for i, leaf in enumerate(jax.tree.leaves(like)):
                for k, part in enumerate(_parts(leaf, shapes=True)):
                    found = data[f"{i}.{k}"]
                    if (found.shape, found.dtype) != (part.shape, part.dtype):
                        wanted = f"{part.dtype}{list(part.shape)}"
                        raise ValueError(f"{path}: an array is {found.dtype}{list(found.shape)}, not {wanted}")
        return True


def _parts(leaf: jax.Array | np.ndarray, shapes: bool = False) -> list[np.ndarray]:
    """What this host has of an array, one part for each of its devices."""
    if isinstance(leaf, np.ndarray):
        return [leaf]
    return [shard.data if shapes else np.asarray(shard.data) for shard in leaf.addressable_shards]  # type: ignore[misc]


def _put(leaf: jax.Array | np.ndarray, i: int, data: np.lib.npyio.NpzFile) -> jax.Array | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return data[f"{i}.0"]
    shape, sharding = leaf.shape, leaf.sharding
    there = [shard.device for shard in leaf.addressable_shards]
    leaf.delete()  # there may be no room for both
    parts = [jax.device_put(data[f"{i}.{k}"], device) for k, device in enumerate(there)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
