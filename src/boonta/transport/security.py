"""Who may connect: addresses, certificates and the shared token."""

import ipaddress
from pathlib import Path
from typing import NamedTuple


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
            ValueError: a file that cannot be read.
        """
        return _read(self.certificate), _read(self.key), _read(self.authority)


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
        ValueError: other machines can reach it, and nothing says who may; half a certificate; a file that cannot be
            read.
    """
    if bool(security.certificate) != bool(security.key):
        raise ValueError("--certificate and --key go together")
    if not local(address) and not (security.certificate and security.token):
        raise ValueError(
            f"{address} can be reached from other machines, so it needs --certificate, --key and --token; "
            "127.0.0.1:PORT and unix:PATH do not"
        )
    security.bytes()


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
