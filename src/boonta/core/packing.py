"""Trees of arrays of fixed shapes as runs of bytes: raw, little-endian, each at a multiple of eight; no pickle."""

from typing import Any

import numpy as np

from boonta.core import nests
from boonta.core.types import PyTree

ALIGNED = 8


class Packing:
    """How trees like `example` lie in bytes.

    Args:
        example: a tree of arrays, or of their shapes and dtypes; numbers and booleans alone.

    Attributes:
        example: as given.
        nbytes: int, how many bytes there are.
        schema: the names, dtypes and shapes in words.

    Raises:
        ValueError: a dtype that has no bytes of its own, such as random keys.
    """

    def __init__(self, example: PyTree) -> None:
        self.example, self._places, at, words = example, [], 0, []
        for name, leaf in nests.named(example):
            if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind not in "biuf":
                raise ValueError(f"{name} is {leaf.dtype}, which cannot be sent; allowed: numbers and booleans")
            dtype = leaf.dtype.newbyteorder("<")
            size = int(np.prod(leaf.shape, dtype=np.int64)) * dtype.itemsize
            self._places.append((at, size, dtype, tuple(leaf.shape)))
            words.append(f"{name}:{dtype.str}{list(leaf.shape)}")
            at += -(-size // ALIGNED) * ALIGNED
        self.nbytes, self.schema = at, " ".join(words)

    def pack(self, tree: PyTree) -> np.ndarray:
        """uint8 [nbytes].

        Raises:
            ValueError: a shape or dtype that is not the example's.
        """
        data = np.zeros(self.nbytes, np.uint8)
        named = list(nests.named(tree))
        for (at, size, dtype, shape), (name, leaf) in zip(self._places, named, strict=True):
            array = np.asarray(leaf)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} must be {dtype.name}{list(shape)}, got {array.dtype.name}{list(array.shape)}")
            data[at : at + size] = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
        return data

    def unpack(self, data: np.ndarray) -> PyTree:
        """The tree, of uint8 [..., nbytes] with the same leading axes; arrays are views where that can be."""
        leaves: list[Any] = []
        for at, size, dtype, shape in self._places:
            part = np.ascontiguousarray(data[..., at : at + size])
            leaves.append(part.view(dtype).reshape((*data.shape[:-1], *shape)))
        return nests.filled(self.example, leaves)
