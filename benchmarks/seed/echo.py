"""Servers for the latency benchmark, each a process: ours without inference behind it, and plain gRPC.

    python -m benchmarks.seed.echo ours|raw ADDRESS COUNT

prints the address it listens at, and ends when its stdin does.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from boonta.core.spec import Discrete, Shape, Spec
from boonta.transport.security import Security
from boonta.transport.server import Server
from boonta.transport.wire import Schema

SPEC = Spec("pong", Shape((84, 84, 4), np.uint8), Discrete(6))
METHOD = "/echo.Echo/Connect"


def main(kind: str, address: str, count: int) -> None:
    """Serve until stdin ends."""
    server, at = {"ours": ours, "raw": raw}[kind](address, count)
    print(at, flush=True)
    sys.stdin.read()
    del server


def ours(address: str, count: int) -> tuple[Any, str]:
    """Boonta's server, which answers every step with the same actions."""

    class Session:
        first, life = 0, 0

        def act(self, timestep):
            del timestep
            return np.zeros(count, np.int32)

        def leave(self, why):
            del why

    made = Server(address, Schema(SPEC), lambda *_: Session(), 0, Security(), count, 4, 60.0)
    return made, made.address


def raw(address: str, count: int) -> tuple[Any, str]:
    """gRPC alone: bytes in, as many bytes as actions have out."""
    answer = bytes(4 * count)
    server = grpc.server(ThreadPoolExecutor(4))
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, context: (answer for _ in requests))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Connect": handler}),))
    port = server.add_insecure_port(address)
    server.start()
    return server, address if address.startswith("unix:") else f"127.0.0.1:{port}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
