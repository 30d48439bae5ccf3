"""Environments' side of the wire; knows NumPy and gRPC, and no JAX."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from boonta.core.types import TimeStep
from boonta.transport import messages
from boonta.transport.security import Security, local
from boonta.transport.wire import Malformed, Schema

try:
    import grpc
except ImportError as error:
    raise ImportError(f"remote environments need gRPC ({error}): pip install 'boonta[seed]'") from error

LARGEST = 1 << 28  # bytes of a message
OPTIONS = [
    ("grpc.max_receive_message_length", LARGEST),
    ("grpc.max_send_message_length", LARGEST),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # by itself a minute, whatever keepalive says
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, which has few streams
]
FINAL = ("FAILED_PRECONDITION", "UNAUTHENTICATED", "INVALID_ARGUMENT")  # trying again is of no use
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification", "Peer name")  # nor where gRPC says this


class Lost(ConnectionError):
    """The server cannot be reached, or ended the connection; `final` says that trying again is of no use."""

    def __init__(self, message: str, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Welcome(NamedTuple):
    """What the server assigned: the first environment's global index, its life, and the run's seed."""

    first: int
    life: int
    seed: int


class Link:
    """A connection of K environments to a server, made at once.

    Args:
        address: `unix:PATH` or `HOST:PORT`.
        schema: of the environments.
        count: K.
        first: global index of the first of them; below 0 for any.
        name: what the server's log calls this.
        security: certificates and token.
        timeout: seconds that an answer may take.

    Raises:
        Lost: from every call.
        ValueError: a token that others could read on its way.
    """

    def __init__(
        self, address: str, schema: Schema, count: int, first: int, name: str, security: Security, timeout: float
    ) -> None:
        self.schema, self.count, self.timeout, self.address = schema, count, timeout, address
        self._channel = _channel(address, security)
        self._open = not (security.authority or security.certificate)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._deadline = time.monotonic() + timeout
        self._closed = threading.Event()
        hello = messages.Hello(
            protocol=messages.PROTOCOL, fingerprint=schema.fingerprint, environments=count, first=first,
            token=security.token, name=name,
        )  # fmt: skip
        connect = self._channel.stream_stream(messages.METHOD)
        self._call = connect(iter(self._outgoing.get, None), metadata=((messages.HELLO, hello.SerializeToString()),))
        threading.Thread(target=self._watch, name="connection watcher", daemon=True).start()
        try:
            answer = self._answered(lambda said: messages.read(said, messages.FromServer, "welcome"))
        except BaseException:
            self.close()
            raise
        self.welcome = Welcome(answer.first, answer.life, answer.seed)

    def step(self, timestep: TimeStep) -> np.ndarray:
        """TimeStep [K, ...] -> actions [K, ...]."""
        return self._exchange(messages.with_data(self.schema.encode(timestep)), self._actions)

    def close(self) -> None:
        """End the connection."""
        self._closed.set()
        self._outgoing.put(None)
        with suppress(Exception):
            self._call.cancel()
        self._channel.close()

    def _actions(self, answer: bytes) -> np.ndarray:
        data = messages.data_in(answer, self.count * self.schema.action_bytes, messages.FromServer, "actions")
        return self.schema.decode_actions(data, self.count)

    def _exchange(self, message: bytes, read: Callable[[bytes], Any]) -> Any:
        self._deadline = time.monotonic() + self.timeout
        self._outgoing.put(message)
        return self._answered(read)

    def _answered(self, read: Callable[[bytes], Any]) -> Any:
        """What the next message of the server is read as."""
        try:
            answer = next(self._call)
        except StopIteration:
            raise Lost(f"{self.address}: the server ended the connection") from None
        except grpc.RpcError as error:
            code, details = error.code().name, error.details()  # type: ignore[attr-defined]
            late = time.monotonic() >= self._deadline
            why = f"no answer for {self.timeout:g} s" if late and code == "CANCELLED" else f"{code}: {details}"
            if self._open and "Socket closed" in str(details):
                why += " (if the server uses TLS, give --authority)"
            untrusted = any(words in str(details) for words in UNTRUSTED)
            raise Lost(f"{self.address}: {why}", final=code in FINAL or untrusted) from None
        self._deadline = float("inf")
        try:
            return read(answer)
        except Malformed as error:
            raise Lost(f"{self.address}: {error}", final=True) from error

    def _watch(self) -> None:
        """End the call where an answer takes too long: waiting for one cannot be given a limit."""
        while not self._closed.wait(0.2):
            if time.monotonic() > self._deadline:
                self._call.cancel()
                return


def _channel(address: str, security: Security) -> grpc.Channel:
    certificate, key, authority = security.bytes()
    if not (authority or certificate):
        if security.token and not local(address):
            raise ValueError(f"a token for {address} needs --authority: without TLS others could read it")
        return grpc.insecure_channel(address, OPTIONS)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(address, credentials, OPTIONS)
