"""Which run folders may have modules imported, and places gone to: those that a key of this user's has sealed.

A run folder whose `config.toml` names only what comes with the package, and no place beyond the run, needs no seal.
"""

import hashlib
import hmac
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from boonta.core.settings import Refused
from boonta.envs import registry as environments
from boonta.experiments import registry
from boonta.experiments.files import write_text
from boonta.experiments.tables import ARCHITECTURES

SEALS = "seals"  # a folder in the run folder, with a file for each key that has sealed what its config.toml says
MOST = 16  # lines of such a file, each for one text
PLACES = (
    "cluster",
    "transport",
    "insecure",
    "remote",
    "coordinator",
    "address",
    "certificate",
    "key",
    "authority",
    "trace",
)
_accepted: set[str] = set()  # texts that --trust is for, where no seal can be kept


class Untrusted(Refused):
    """A run folder names modules or places, and this user has not sealed it."""


def modules(tables: Mapping[str, Any]) -> dict[str, str]:
    """The modules of a configuration that are the user's own, by table; whatever comes to name some belongs here.

    Args:
        tables: of a configuration, as `config.toml` holds them.
    """
    found = {
        "agent": registry.own_module_of(tables["agent"]["name"]),
        "env": environments.own_module_of(tables["env"]["name"]),
    }
    return {table: ascii(module)[1:-1] for table, module in found.items() if module}


def places(tables: Mapping[str, Any]) -> list[str]:
    """The files and machines beyond the run that a configuration names: others write there, or are connected to."""
    options = tables["architecture"]
    cls = ARCHITECTURES.get(options["name"])
    usual = {field.name: field.default for field in fields(cls)} if cls else {}
    alike = lambda key: options[key] == usual[key] or (not options[key] and not usual[key])  # noqa: E731
    named = [key for key in PLACES if key in options and key in usual and not alike(key)]
    return [f"architecture.{key}={options[key]!a}" for key in named]


def check(folder: Path, text: str, tables: Mapping[str, Any], beyond: bool = False) -> None:
    """Check that what a run folder names may be imported.

    Args:
        folder: the run folder.
        text: of its `config.toml`.
        tables: which that text holds.
        beyond: whether the run goes on, and so to the places that it names.

    Raises:
        Untrusted: it names modules of somebody's own, or such places, and no seal of this user's is there.
    """
    imported = ", ".join(modules(tables).values())
    if not (imported or (beyond and places(tables))) or text in _accepted:
        return
    try:
        key, why = _key(make=False), "it is somebody else's, older than seals, or was edited"
    except OSError as error:
        key, why = b"", str(error)
    if key and any(hmac.compare_digest(line, _sealed(key, text)) for line in _lines(_file(folder, key))):
        return
    gone_to = ", ".join(places(tables))  # --trust agrees to them too, whatever the command
    named = [f"modules that would be imported ({imported})"] if imported else []
    named += [f"places beyond the run ({gone_to})"] if gone_to else []
    told = " and ".join(named)
    raise Untrusted(f"{folder}: its config.toml names {told}, and you have not sealed it: {why}; --trust seals it")


def seal(folder: Path, text: str, tables: Mapping[str, Any]) -> None:
    """Let this user's commands import what the configuration of a run folder names, and go where it says.

    Args:
        folder: the run folder.
        text: of its `config.toml`, now or soon.
        tables: which that text holds.
    """
    if not (modules(tables) or places(tables)):
        return
    _accepted.add(text)
    try:
        key = _key(make=True)
        line, before = _sealed(key, text), _lines(_file(folder, key))
        if line not in before:
            write_text(_file(folder, key), "\n".join([*before, line][-MOST:]) + "\n")
    except OSError as error:
        print(f"boonta: {folder} cannot be sealed ({error}), so it is opened with --trust each time", file=sys.stderr)


def _file(folder: Path, key: bytes) -> Path:
    return folder / SEALS / hashlib.sha256(b"boonta seals\n" + key).hexdigest()[:16]


def _lines(path: Path) -> list[str]:
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open(encoding="ascii") as file:
                return file.read(MOST * 65).split()[:MOST]
    return []


def _sealed(key: bytes, text: str) -> str:
    return hmac.digest(key, b"boonta config.toml\n" + text.encode(), "sha256").hex()


def _key(make: bool) -> bytes:
    """The key of this user; nothing where there is none and none is to be made.

    Raises:
        OSError: it cannot be made or read, others can, or it is none.
    """
    try:
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError as error:
        raise OSError(f"there is no home folder for the key: {error}") from error
    path = home / "boonta" / "seal.key"
    if make and not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            suppress(FileExistsError),
            open(os.open(path, flags, 0o600), "w", encoding="ascii") as file,
        ):  # or another's
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
    if not path.exists():
        return b""
    facts = path.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{path} must be yours alone (chmod 600), or deleted: whoever reads it can seal")
    for _ in range(20):  # another process may be writing it
        found = path.read_bytes()
        if re.fullmatch(rb"[0-9a-f]{64}", found):
            return found
        time.sleep(0.05)
    raise OSError(f"{path} is no key of ours; delete it")
