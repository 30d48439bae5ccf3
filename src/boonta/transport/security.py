"""Who may connect: addresses, certificates and the shared token."""

import ipaddress
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

AGAIN = 1.0  # seconds before a host is looked up again


class Security(NamedTuple):
    """What protects a connection; empty texts for nothing.

    Attributes:
        certificate: PEM file of this side's certificate.
        key: PEM file of its private key.
        authority: PEM file of the certificates that the other side's must be signed by.
        token: shared secret that clients tell.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    token: str = ""

    def bytes(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Certificate, key and authority.

        Raises:
            ValueError: half a certificate, or a file that cannot be read or is not what it should be.
        """
        if bool(self.certificate) != bool(self.key):
            raise ValueError("--certificate and --key go together")
        found = _read(self.certificate), _read(self.key), _read(self.authority)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # gRPC would only say that it cannot listen, or connect
        if self.certificate:
            _checked(
                f"--certificate {self.certificate}, --key {self.key}",
                lambda: context.load_cert_chain(self.certificate, self.key, password=""),
            )
        if self.authority:
            _checked(f"--authority {self.authority}", lambda: context.load_verify_locations(self.authority))
        return found


def local(address: str) -> bool:
    """Whether only this machine can reach an address, `unix:PATH` or `HOST:PORT`."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_server(address: str, security: Security) -> None:
    """Hold a server to what its address asks for.

    Raises:
        ValueError: as `check_address` and `Security.bytes`; other machines can reach it, and nothing says who may.
    """
    check_address(address)
    security.bytes()
    missing = [] if security.certificate else ["--certificate", "--key"]
    missing += [] if security.token else ["--token (or $BOONTA_TOKEN)"]
    if missing and not local(address):
        raise ValueError(
            f"{address} can be reached from other machines, so it needs {' and '.join(missing)}; 127.0.0.1:PORT and "
            "unix:PATH do not"
        )


def unguarded(address: str, security: Security) -> str:
    """What to tell of a server that asks for nothing; nothing of one on a socket of this user's."""
    if address.startswith("unix:") or security.token or security.authority:
        return ""
    return f"{address} asks for no token: every user of this computer may connect (--token, $BOONTA_TOKEN)"


def check_address(address: str) -> None:
    """Hold an address to its form.

    Raises:
        ValueError: it is neither unix:PATH, in a folder that is there, nor HOST:PORT.
    """
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if not path.name or not path.parent.is_dir():
            raise ValueError(f"{address}: unix:PATH must name a file in a folder that is there")
        return
    if "://" in address:
        raise ValueError(f"{address!r} must be unix:PATH or HOST:PORT, without {address.partition('://')[0]}://")
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} must be unix:PATH or HOST:PORT, with a port from 0 to 65535")


def check_host(address: str, patience: float, asked: bool) -> None:
    """Look the host of an address up, before anything expensive is done for it.

    Args:
        address: that may be connected to.
        patience: seconds for which the name server may fail, or the host may be none where that was asked for.
        asked: whether it was.

    Raises:
        ValueError: there is no such host.
    """
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    until, told = time.monotonic() + patience, False
    while True:
        try:
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            return
        except socket.gaierror as error:
            passing = error.errno == socket.EAI_AGAIN
            if time.monotonic() >= until or not (passing or asked):
                hint = "" if asked or passing else "; --patience SECONDS waits for one"
                raise ValueError(f"{address}: there is no host {host} ({error.strerror}){hint}") from error
            if not told:
                told = True
                print(
                    f"boonta: {address}: {error.strerror}; looked up again, for up to {patience:g} s", file=sys.stderr
                )
        time.sleep(AGAIN)


def check_free(address: str) -> None:
    """Hold an address to being nobody else's, before anything expensive is done for it.

    Raises:
        OSError: somebody listens there, or nobody can.
    """
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as other, suppress(FileNotFoundError, ConnectionRefusedError):
                other.connect(address.removeprefix("unix:"))
                raise OSError("somebody listens there")
            return
        host, _, port = address.rpartition(":")
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            ours.bind(where)
    except OSError as error:
        raise OSError(f"{address} cannot be listened at: {error.strerror or error}") from error


def _checked(what: str, load: Callable[[], object]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise ValueError(f"{what}: {error.reason or error}") from error


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
