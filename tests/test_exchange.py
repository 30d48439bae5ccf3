"""Exchanges, and how trees lie in bytes."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.packing import Packing
from boonta.core.settings import Refused
from boonta.core.types import Origin
from boonta.testing.exchange import LAYOUT, ExchangeContract
from boonta.transport import shm
from boonta.transport.shm import SharedMemory


# Forked processes of these tests only write to the exchange; JAX warns of every fork.
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process")
class TestSharedMemory(ExchangeContract):
    def make(self, layout):
        return SharedMemory(layout)

    def joiner(self, exchange):
        return partial(SharedMemory, exchange.layout, exchange.descriptor)

    def test_it_has_no_name_and_leaves_nothing(self):
        before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        exchange = self.make(LAYOUT)
        assert not before or set(os.listdir("/dev/shm")) == before
        exchange.close()
        with pytest.raises(OSError):
            os.fstat(exchange.descriptor)

    def test_who_lays_it_out_otherwise_is_refused(self):
        exchange = self.make(LAYOUT)
        for other in (LAYOUT._replace(about="something else"), LAYOUT._replace(values={"value": 1 << 20})):
            with pytest.raises(Refused, match="do not agree"):
                SharedMemory(other, exchange.descriptor)
        exchange.close()

    def test_more_memory_than_there_is_is_refused(self, monkeypatch):
        monkeypatch.setattr(shm, "_available", lambda: 1000)
        with pytest.raises(Refused, match=r"GB of shared memory are needed for agent\.capacity"):
            self.make(LAYOUT)


TREE = {
    "origin": Origin(np.int32(1), np.int32(2), np.int32(3), np.int32(4)),
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flag": np.array([True, False, True]),
    "nothing": (),
}


def test_trees_come_back_as_they_were():
    packing = Packing(TREE)
    data = packing.pack(TREE)
    assert data.shape == (packing.nbytes,) and packing.nbytes % 8 == 0
    again = packing.unpack(data)
    assert isinstance(again["origin"], Origin) and again["nothing"] == ()
    jax.tree.map(np.testing.assert_array_equal, again, TREE)
    many = packing.unpack(np.stack([data, data]))
    assert many["x"].shape == (2, 2, 3) and many["origin"].life.shape == (2,)
    assert Packing(jax.eval_shape(lambda: TREE)).schema == packing.schema


def test_what_does_not_fit_is_refused():
    packing = Packing(TREE)
    with pytest.raises(ValueError, match=r"x must be float32\[2, 3\], got float64\[2, 3\]"):
        packing.pack(TREE | {"x": TREE["x"].astype(np.float64)})
    with pytest.raises(ValueError, match="keys is .*, which cannot be sent"):
        Packing({"keys": jax.random.key(0)})
    assert Packing({"x": jnp.zeros(3)}).schema != Packing({"x": jnp.zeros(4)}).schema
