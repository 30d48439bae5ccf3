"""The server's side of the wire: holds clients to the protocol, and knows nothing of what answers them."""

import hmac
import math
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol

import numpy as np

from boonta.core.types import TimeStep
from boonta.transport import messages
from boonta.transport.security import Security, check_server
from boonta.transport.wire import Malformed, Schema

try:
    import grpc
except ImportError as error:
    raise ImportError(f"remote environments need gRPC ({error}): pip install 'boonta[seed]'") from error

GREETERS = 8  # threads beyond those of the clients, in which callers are looked at
HANDSHAKE = 5_000  # milliseconds that a connection has for its handshake
IDLE = 10_000  # milliseconds for which a connection may be there without a stream
STREAMS = 16  # of one connection
FILES = 1 << 16  # of this process, connections of strangers among them
SMALLEST = 1 << 16  # bytes that a message may have in any case
TOLD = 20  # strangers a second who are told why they are refused; the others get UNIMPLEMENTED, which costs little


class Refused(Exception):
    """A client cannot be let in, or goes; `code` is a name of grpc.StatusCode."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session(Protocol):
    """A client's environments, as whoever answers sees them."""

    first: int
    life: int

    def act(self, timestep: TimeStep) -> np.ndarray:
        """TimeStep [K, ...] -> actions [K, ...]. Raises Refused where the server ends."""
        ...

    def leave(self, why: str) -> None:
        """The client is gone."""
        ...


class Server:
    """Listens for clients.

    Args:
        address: `unix:PATH` or `HOST:PORT`; port 0 for any that is free.
        schema: of the environments.
        join: (environments, first or -1, name) -> Session; raises Refused.
        seed: of the run.
        security: Security.
        most: environments of one client.
        clients: that may be connected at the same time.
        silence: seconds after which a client that says nothing is dropped.
        refused: takes why a client was not let in.

    Raises:
        ValueError: an address that needs more security.
        OSError: the address is taken.
    """

    def __init__(
        self,
        address: str,
        schema: Schema,
        join: Callable[[int, int, str], Session],
        seed: int,
        security: Security,
        most: int,
        clients: int,
        silence: float,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        check_server(address, security)
        self.schema, self.seed, self.silence, self._join, self._token = schema, seed, silence, join, security.token
        self._refused = refused
        largest = max(most * schema.step_bytes + 1024, SMALLEST)
        options = [
            ("grpc.max_receive_message_length", largest),
            ("grpc.max_send_message_length", max(most * schema.action_bytes + 1024, SMALLEST)),
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.so_reuseport", 0),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE),
            ("grpc.max_connection_idle_ms", IDLE),
            ("grpc.max_concurrent_streams", STREAMS),
        ]
        _allow_files()
        self._clients = clients
        self._pool = ThreadPoolExecutor(clients + GREETERS, thread_name_prefix="client")
        self._server = grpc.server(self._pool, options=options)
        self._server.add_generic_rpc_handlers((_Door(self._connect, self._token, self._refused),))
        certificate, key, authority = security.bytes()
        try:
            if certificate and key:
                credentials = grpc.ssl_server_credentials([(key, certificate)], authority, authority is not None)
                port = self._server.add_secure_port(address, credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            self._pool.shutdown()
            raise OSError(f"{address} cannot be listened at: {error}") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        self._heard: dict[Any, float | None] = {}  # when each client spoke; None: it is dropped
        self._hearing = threading.Lock()
        self._ended = threading.Event()
        self._server.start()
        threading.Thread(target=self._watch, name="client watcher", daemon=True).start()

    def close(self) -> None:
        """Drop all clients."""
        self._ended.set()
        self._server.stop(1.0).wait(5.0)
        self._pool.shutdown(wait=False)

    def _connect(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        session, why = None, "it left"
        try:
            session, count = self._welcomed(context)
            welcome = messages.Welcome(first=session.first, life=session.life, seed=self.seed)
            yield messages.FromServer(welcome=welcome).SerializeToString()
            before, actions = None, np.resize(self.schema.no_actions, (count, *self.schema.no_actions.shape[1:]))
            nbytes = count * self.schema.step_bytes
            for message in requests:
                self._heard[context] = math.inf  # while it is the server that it waits for
                data = messages.data_in(message, nbytes, messages.FromClient, "steps")
                timestep = self.schema.decode(data, before, actions)
                before, actions = np.asarray(timestep.step_type), session.act(timestep)
                self._heard[context] = time.monotonic()
                yield messages.with_data(self.schema.encode_actions(actions))
        except Malformed as error:
            why = f"it was dropped: {error}"
            self._abort(context, "INVALID_ARGUMENT", str(error), session)
        except Refused as error:
            why = f"it was refused: {error}"
            self._abort(context, error.code, str(error), session)
        finally:
            if session is not None:
                with self._hearing:
                    silent = self._heard.pop(context) is None
                session.leave(f"it said nothing for {self.silence:g} s (architecture.silence)" if silent else why)

    def _welcomed(self, context: grpc.ServicerContext) -> tuple[Session, int]:
        """The session of whoever calls, who has said all with the call: nobody waits for a stranger."""
        hello = messages.hello(context.invocation_metadata())
        if hello is None:
            raise Refused(
                "FAILED_PRECONDITION",
                f"no metadata {messages.HELLO}, as of protocol 1; this server speaks {messages.PROTOCOL}",
            )
        if not _knows(hello, self._token):
            raise Refused("UNAUTHENTICATED", "another token")
        if hello.protocol != messages.PROTOCOL:
            raise Refused("FAILED_PRECONDITION", f"protocol {hello.protocol}; this server speaks {messages.PROTOCOL}")
        if hello.fingerprint != self.schema.fingerprint:
            raise Refused("FAILED_PRECONDITION", f"another schema; this server's is:\n{self.schema.text}")
        if hello.environments < 1:
            raise Malformed(f"environments must be at least 1, got {hello.environments}")
        with self._hearing:
            if len(self._heard) >= self._clients:
                raise Refused("RESOURCE_EXHAUSTED", f"{self._clients} clients are connected (architecture.clients)")
            self._heard[context] = time.monotonic()
        name = ascii(hello.name[:100])[1:-1]  # it is printed
        try:
            return self._join(hello.environments, max(hello.first, -1), name), hello.environments
        except BaseException:
            with self._hearing:
                del self._heard[context]
            raise

    def _abort(self, context: grpc.ServicerContext, code: str, message: str, session: Session | None) -> NoReturn:
        if session is None:
            self._refused(message.partition("\n")[0])
        context.abort(getattr(grpc.StatusCode, code), message)
        raise AssertionError("not reached")

    def _watch(self) -> None:
        """Drop clients that say nothing: waiting for a message cannot be given a limit."""
        while not self._ended.wait(min(self.silence / 4, 1.0)):
            with self._hearing:
                now = time.monotonic()
                silent = [one for one, heard in self._heard.items() if heard is not None and now > heard + self.silence]
                self._heard |= dict.fromkeys(silent)
            for context in silent:
                context.cancel()


class _Door(grpc.GenericRpcHandler):
    """What gRPC asks for each call in the one thread that serves: strangers get no thread, but for a few each second.

    Args:
        connect: what answers a call, in a thread.
        token: of those who are no strangers.
        refused: takes why the others were turned away.
    """

    def __init__(self, connect: Callable[..., Iterator[bytes]], token: str, refused: Callable[[str], None]) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(connect)
        self._token, self._refused = token, refused
        self._second, self._told = 0, 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler; None, which gRPC answers with UNIMPLEMENTED, of another method and for strangers of a crowd."""
        if handler_call_details.method != messages.METHOD:
            return None
        try:
            known = _knows(messages.hello(handler_call_details.invocation_metadata), self._token)
        except Malformed:
            known = False
        return self._handler if known or self._may_tell() else None

    def _may_tell(self) -> bool:
        second = int(time.monotonic())
        self._told = self._told + 1 if second == self._second else 1
        self._second = second
        if self._told > TOLD:
            self._refused(f"more than {TOLD} strangers came within a second")
        return self._told <= TOLD


def _knows(hello: Any, token: str) -> bool:
    """Whether a Hello has the token."""
    return hello is not None and hmac.compare_digest(hello.token.encode(), token.encode())


def _allow_files() -> None:
    """Let this process have as many connections as it may: strangers, who are soon closed, have some of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
