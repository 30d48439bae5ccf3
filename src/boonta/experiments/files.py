"""Files that are either as they were or complete: everything is written beside its place and renamed into it."""

import json
import math
import os
import stat
import threading
from pathlib import Path
from typing import Any

MOST = 1 << 26  # bytes of a file that is read whole


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, making its folder where needed; a reader, or a crash, sees the old file or the new one.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:  # never through a link
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    # The rename itself lives in the folder: without this a power cut may undo it.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, like `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value`, made `plain`, as indented JSON, like `write_bytes`.

    Raises:
        TypeError: something in `value` has no JSON form.
    """
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_bytes(path: str | Path, most: int = MOST) -> bytes:
    """What is in a file that may be somebody else's: a file itself, and neither a link nor a device.

    Args:
        path: of it.
        most: bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is none of these, or too large.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is not a file")
        if facts.st_size > most:
            raise OSError(f"{path} has {facts.st_size:,} bytes, of which at most {most:,} are read")
        return file.read(most)


def read_json(path: str | Path) -> Any:
    """What the JSON file at `path` says.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON; the message names the file, the line and the column.
    """
    try:
        return json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def plain(value: Any) -> Any:
    """`value` in JSON's own types: arrays as numbers and lists, paths as text, NaN and infinities as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
