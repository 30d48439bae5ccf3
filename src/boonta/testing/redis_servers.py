"""A Redis server for tests and drills, on this machine, ended with whoever started it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boonta.transport import redis_server

PATIENCE = 10.0  # seconds for it to start


def installed() -> bool:
    """Whether there is a `redis-server` to start."""
    return shutil.which("redis-server") is not None


class Server:
    """One that can be stopped and started again on its port.

    Args:
        folder: where it works.
        options: of its command line.
        host: the address it listens at.
        tls: likewise, of TLS; it then has no other port.

    Attributes:
        address: for `--transport`.
    """

    def __init__(self, folder: Path, *options: str, host: str = "127.0.0.1", tls: tuple[str, ...] = ()) -> None:
        with socket.socket() as one:
            one.bind((host, 0))
            self.port = one.getsockname()[1]
        self.host, self.folder = host, folder
        ports = ["--port", "0", "--tls-port", str(self.port), *tls] if tls else ["--port", str(self.port)]
        self.words = [*ports, "--bind", host, "--save", "", "--appendonly", "no", "--dir", str(folder), *options]
        self.address = f"{'rediss' if tls else 'redis'}://{host}:{self.port}/0"
        self.start()

    def start(self) -> None:
        """Start it, with nothing in it."""
        self.process = subprocess.Popen(["redis-server", *self.words], stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection((self.host, self.port), 1.0).close()
                return
            except OSError as error:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise RuntimeError("redis-server does not start") from error
                time.sleep(0.02)

    def stop(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def left(self) -> list[bytes]:
        """The keys in it."""
        client = redis_server.client(self.address)
        try:
            return list(client.scan_iter())
        finally:
            client.close()


@contextmanager
def serving(folder: Path, *options: str, host: str = "127.0.0.1", tls: tuple[str, ...] = ()) -> Iterator[Server]:
    """See `Server`."""
    server = Server(folder, *options, host=host, tls=tls)
    try:
        yield server
    finally:
        server.stop()
