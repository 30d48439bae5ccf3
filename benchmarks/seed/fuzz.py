"""Clients that do all they can to harm a server: each attempt is a connection of its own."""

import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from boonta.core import host, nests
from boonta.core.spec import Spec
from boonta.core.types import FIRST, LAST, MID
from boonta.transport import messages
from boonta.transport.wire import Schema

PATIENCE = 10.0  # seconds for an answer
Random = np.random.Generator


class Fuzzer:
    """Attempts of every kind, at random.

    Args:
        address: of the server, `unix:PATH` or `HOST:PORT`.
        spec: of the environments that it serves.
        token: that it asks for.
        seed: of what is tried.
    """

    def __init__(self, address: str, spec: Spec, token: str = "", seed: int = 0) -> None:
        self.address, self.spec, self.token = address, spec, token
        self.schema, self.random = Schema(spec), np.random.default_rng(seed)
        self.answers: Counter[str] = Counter()
        self._channel = grpc.insecure_channel(address)
        self._connect = self._channel.stream_stream(messages.METHOD)
        self._kinds: list[Callable[[], Any]] = [
            self._noise, self._random_message, self._silent, self._hello, self._steps_first, self._step,
            self._truncated, self._flipped, self._oversized, self._not_finite, self._out_of_order, self._half_a_hello,
            self._random_hello, self._first_protocol,
        ]  # fmt: skip

    def attempts(self, count: int) -> Counter[str]:
        """Make so many; how they were answered, by kind and status."""
        for i in range(count):
            kind = self._kinds[i % len(self._kinds)]
            self.answers[f"{kind.__name__.strip('_')}: {kind()}"] += 1
        return self.answers

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _noise(self) -> str:
        """Bytes that are no HTTP/2."""
        if self.address.startswith("unix:"):
            raw = socket.socket(socket.AF_UNIX)
            where: Any = self.address.removeprefix("unix:")
        else:
            name, _, port = self.address.rpartition(":")
            raw, where = socket.socket(), (name, int(port))
        with raw:
            raw.connect(where)
            raw.sendall(self._bytes(500))
        return "sent"

    def _random_message(self) -> str:
        return self._said(self._bytes(300))

    def _random_hello(self) -> str:
        return self._said(hello=self._bytes(300))

    def _silent(self) -> str:
        """A call without a hello."""
        return self._said(hello=None)

    def _first_protocol(self) -> str:
        """A hello in the first message."""
        hello = messages.Hello.FromString(self._greeting(protocol=1))
        return self._said(messages.FromClient(hello=hello).SerializeToString(), hello=None)

    def _half_a_hello(self) -> str:
        hello = self._greeting()
        return self._said(hello=hello[: self.random.integers(1, len(hello))])

    def _hello(self) -> str:
        """A greeting of another protocol, schema or token, or for environments that cannot be."""
        wrong = (
            {"protocol": int(self.random.integers(3, 1 << 30))},
            {"fingerprint": self.random.bytes(32)},
            {"token": self.token + "x"},
            {"environments": 0},
            {"environments": 1 << 30},
            {"first": 1 << 30},
        )
        return self._said(hello=self._greeting(**wrong[self.random.integers(len(wrong))]))

    def _steps_first(self) -> str:
        return self._said(self._steps(self._timestep(FIRST)), hello=None)

    def _step(self) -> str:
        return self._said(self._steps(self._bytes(3 * self.schema.step_bytes)))

    def _truncated(self) -> str:
        whole = self._timestep(FIRST)
        return self._said(self._steps(whole[: self.random.integers(len(whole))]))

    def _flipped(self) -> str:
        """A step of which one byte is another; some of these are right by chance, and then it leaves."""
        data = bytearray(self._timestep(FIRST))
        data[-1 - self.random.integers(8)] ^= int(self.random.integers(1, 256))
        return self._said(self._steps(bytes(data)), self._steps(b""))

    def _oversized(self) -> str:
        return self._said(self._steps(bytes(1 << 22)))

    def _not_finite(self) -> str:
        bad = [np.nan, np.inf, -np.inf][self.random.integers(3)]
        reward = self._timestep(MID, lambda step: step.reward.fill(bad))
        return self._said(self._steps(self._timestep(FIRST)), self._steps(reward))

    def _out_of_order(self) -> str:
        kinds = [(MID,), (LAST,), (FIRST, FIRST), (FIRST, LAST, MID)][self.random.integers(4)]
        return self._said(*(self._steps(self._timestep(kind)) for kind in kinds))

    def _said(self, *said: bytes, hello: bytes | None = b"") -> str:
        """Say this, one after the other as answers come, after a right hello or this; the status it ends with."""
        metadata = () if hello is None else ((messages.HELLO, hello or self._greeting()),)
        call = self._connect(iter(said), timeout=PATIENCE, metadata=metadata)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return error.code().name  # type: ignore[attr-defined]
        return "OK"

    def _bytes(self, most: int) -> bytes:
        return self.random.bytes(int(self.random.integers(1, most)))

    def _greeting(self, **changes: Any) -> bytes:
        whole: dict[str, Any] = {
            "protocol": messages.PROTOCOL, "fingerprint": self.schema.fingerprint, "environments": 1, "first": -1,
            "token": self.token, "name": "fuzzer",
        }  # fmt: skip
        return messages.Hello(**whole | changes).SerializeToString()

    def _steps(self, data: bytes) -> bytes:
        return messages.FromClient(steps=messages.Steps(data=data)).SerializeToString()

    def _timestep(self, kind: int, change: Callable[[Any], Any] = lambda step: None) -> bytes:
        step = host.empty(self.spec, 1)
        for leaf in nests.leaves(step.observation):
            leaf[:] = 1 if leaf.dtype == bool else self.random.integers(0, 5, leaf.shape)
        step.step_type[:] = kind
        step.discount[:] = kind != LAST
        change(step)
        return self.schema.encode(step)
