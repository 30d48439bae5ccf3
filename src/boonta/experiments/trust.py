"""Which run folders may have modules of the user's own imported: those that a key of this user's has sealed.

A run folder whose `config.toml` names only what comes with the package needs no seal.
"""

import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from boonta.core.settings import Refused
from boonta.envs import registry as environments
from boonta.experiments import registry
from boonta.experiments.files import write_text

SEAL = "config.seal"  # in a run folder: a line for each key that has sealed what its config.toml says
MOST = 16  # lines
_accepted: set[str] = set()  # texts that --trust is for, where no seal can be kept


class Untrusted(Refused):
    """A run folder names modules, and this user has not sealed it."""


def modules(tables: Mapping[str, Any]) -> dict[str, str]:
    """The modules that a configuration names and that are the user's own, by table; whatever comes to name some belongs
    here.

    Args:
        tables: of a configuration, as `config.toml` holds them.
    """
    found = {
        "agent": registry.own_module_of(tables["agent"]["name"]),
        "env": environments.own_module_of(tables["env"]["name"]),
    }
    return {table: module for table, module in found.items() if module}


def check(folder: Path, text: str, tables: Mapping[str, Any]) -> None:
    """Check that what a run folder names may be imported.

    Args:
        folder: the run folder.
        text: of its `config.toml`.
        tables: which that text holds.

    Raises:
        Untrusted: it names modules of somebody's own, and no seal of this user's is there.
    """
    if not (named := modules(tables)) or text in _accepted:
        return
    try:
        key, why = _key(make=False), "it is somebody else's, older than seals, or was edited"
    except OSError as error:
        key, why = b"", str(error)
    if key and any(hmac.compare_digest(line, _sealed(key, text)) for line in _lines(folder)):
        return
    raise Untrusted(
        f"{folder}: its config.toml names modules that would be imported ({', '.join(named.values())}), and you have "
        f"not sealed it: {why}; --trust seals it"
    )


def seal(folder: Path, text: str, tables: Mapping[str, Any]) -> None:
    """Let this user's commands import what the configuration of a run folder names.

    Args:
        folder: the run folder.
        text: of its `config.toml`, now or soon.
        tables: which that text holds.
    """
    if not (named := modules(tables)):
        return
    _accepted.add(text)
    try:
        line, before = _sealed(_key(make=True), text), _lines(folder)
        if line not in before:
            write_text(folder / SEAL, "\n".join([*before, line][-MOST:]) + "\n")
    except OSError as error:
        print(
            f"boonta: {folder} cannot be sealed ({error}), so every command that imports {', '.join(named.values())} "
            "for it needs --trust",
            file=sys.stderr,
        )


def _lines(folder: Path) -> list[str]:
    with suppress(OSError, ValueError):
        return [line for line in (folder / SEAL).read_text("ascii")[: MOST * 100].split() if line][:MOST]
    return []


def _sealed(key: bytes, text: str) -> str:
    return hmac.digest(key, b"boonta config.toml\n" + text.encode(), "sha256").hex()


def _key(make: bool) -> bytes:
    """The key of this user; nothing where there is none and none is to be made.

    Raises:
        OSError: it cannot be made or read, or others can.
    """
    try:
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError as error:
        raise OSError(f"there is no home folder for the key: {error}") from error
    path = home / "boonta" / "seal.key"
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(beside, path)  # the first of several wins
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    if not path.exists():
        return b""
    facts = path.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{path} must be yours alone (chmod 600), or deleted: whoever reads it can seal")
    return path.read_bytes()
