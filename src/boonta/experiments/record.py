"""What `run.json` tells of a run."""

from pathlib import Path
from typing import Any

from boonta.experiments import config as configuration
from boonta.experiments import files, trust
from boonta.experiments.config import Config

NAME = "run.json"


class Damaged(OSError):
    """A file of a run folder is missing, or is not what was written; the message names the folder and the file."""


def read(folder: Path, called: str = "") -> dict[str, Any]:
    """The record of the run in a folder.

    Args:
        folder: the run folder.
        called: what stands before its name in a message.

    Raises:
        Damaged: it cannot be read.
    """
    try:
        found = files.read_json(folder / NAME)
        if not isinstance(found, dict):
            raise ValueError(f"it must be an object, got {type(found).__name__}")
    except (OSError, ValueError) as error:
        raise Damaged(f"{called}{folder}: its {NAME} {_why(error)}") from error
    return found


def resumed(folder: Path, called: str = "") -> Config:
    """The configuration of a run folder that can be gone on from, but for its checkpoints.

    Raises:
        Damaged: it cannot.
        Untrusted: it may not.
    """
    read(folder, called)
    try:
        return configuration.load(folder / "config.toml", beyond=True)
    except trust.Untrusted:
        raise
    except (OSError, ValueError) as error:
        raise Damaged(f"{called}{folder}: its config.toml {_why(error)}") from error


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return f"cannot be read: {error}" if isinstance(error, OSError) else f"is damaged: {error}"
