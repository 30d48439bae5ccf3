"""The replays of a run on disk: those of its latest checkpoint, for a run that goes on."""

import os
import shutil
import struct
import zipfile
from pathlib import Path

import jax
import numpy as np

from boonta.core.types import PyTree
from boonta.experiments import agreement

FOLDER = "replay"
NUMBERS = "biufV"  # kinds of dtype; V as raw bytes is how NumPy writes bfloat16
Arrays = dict[str, np.ndarray]


class Replays:
    """What learners have to learn from, one folder a step count, of which only the latest outlives its successor.

    Every host has a file of its own. On all hosts, as every method here.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve() / FOLDER

    def save(self, env_steps: int, arrays: Arrays) -> None:
        """Write what this host has.

        Raises:
            OSError: it could not be written; nothing of it is left.
        """
        place = self._file(env_steps)
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_suffix(".tmp")
        try:
            beside.unlink(missing_ok=True)
            with beside.open("xb") as file:  # never through a link
                np.savez(file, **arrays)  # type: ignore[arg-type]
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
                if other.name.isdecimal() and other.name != str(env_steps):
                    shutil.rmtree(other)

    def restore(self, env_steps: int) -> tuple[Arrays | None, str]:
        """What this host had at that step; or nothing, and why, if that is so on any host."""
        found, why = None, "another host has none"
        try:
            found = _mapped(self._file(env_steps))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            why = f"{type(error).__name__}: {error}"
        return (found, "") if agreement.together(found is not None) else (None, why)

    def _file(self, env_steps: int) -> Path:
        return self._folder / str(env_steps) / f"host-{jax.process_index()}.npz"


def _mapped(path: Path) -> Arrays:
    """The arrays of a file that `np.savez` wrote, checked, and read as they are used: there may be no room for two.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: it is damaged.
    """
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is damaged")
        for one in archive.infolist():
            file.seek(one.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            file.seek(one.header_offset + 30 + name + extra)
            read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
            shape, columns_first, dtype = read[np.lib.format.read_magic(file)[0]](file)
            if dtype.kind not in NUMBERS or dtype.hasobject:  # objects would be addresses that a stranger chose
                raise ValueError(f"{one.filename} holds {dtype}, which is no number")
            empty, order = 0 in shape, "F" if columns_first else "C"
            array = np.zeros(shape, dtype) if empty else np.memmap(file, dtype, "r", file.tell(), shape, order)
            found[one.filename.removesuffix(".npy")] = array
    return found


def taken(tree: PyTree) -> Arrays:
    """This host's parts of device arrays, by leaf and device."""
    leaves = jax.tree.leaves(tree)
    return {
        f"{i}.{k}": np.asarray(x.data) for i, leaf in enumerate(leaves) for k, x in enumerate(leaf.addressable_shards)
    }


def put_back(tree: PyTree, arrays: Arrays) -> PyTree:
    """Device arrays like those of `tree`, which are used up, from what `taken` gave.

    Raises:
        ValueError, KeyError: they were otherwise; then `tree` is as it was.
    """
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        for k, part in enumerate(leaf.addressable_shards):
            found = arrays[f"{i}.{k}"]
            if (found.shape, found.dtype) != (part.data.shape, part.data.dtype):
                wanted = f"{part.data.dtype}{list(part.data.shape)}"
                raise ValueError(f"an array is {found.dtype}{list(found.shape)}, not {wanted}")

    def put(i: int, leaf: jax.Array) -> jax.Array:
        shape, sharding = leaf.shape, leaf.sharding
        there = [shard.device for shard in leaf.addressable_shards]
        leaf.delete()  # there may be no room for both
        parts = [jax.device_put(arrays[f"{i}.{k}"], device) for k, device in enumerate(there)]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    return structure.unflatten([put(i, leaf) for i, leaf in enumerate(leaves)])
