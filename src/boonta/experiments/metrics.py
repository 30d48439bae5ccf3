"""The log of a run: one JSON object a line in `metrics.jsonl`, mirrored to TensorBoard."""

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from boonta.experiments.files import plain, read_bytes, write_bytes

METRICS = "metrics.jsonl"
MOST = 1 << 32  # bytes of a log that is read
TENSORBOARD = "tensorboard"


class MetricsLog:
    """The open log of one run folder; threads may share it.

    Opening mends a last line that an earlier process left half-written, and goes on after it.

    Args:
        folder: the run folder, made where needed.
        tensorboard: also write `tensorboard/` (`tensorboard/member-K` for the rows of member K of a population).
    """

    def __init__(self, folder: str | Path, tensorboard: bool = True) -> None:
        self._folder = Path(folder)
        self._path = self._folder / METRICS
        self._tensorboard = tensorboard
        self._mirrors: dict[Path, Any] = {}
        self._purge: int | None = None
        self._lock = threading.RLock()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            self._rewrite(read_metrics(self._folder))
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append `row` and flush it. Scalars may be NumPy's or JAX's; NaN and infinities are written as null.

        Numbers are mirrored to TensorBoard at step `env_steps` (0 where the row has none).

        Raises:
            TypeError: a value has no JSON form.
            ValueError: the log is closed.
        """
        clean: dict[str, Any] = plain(dict(row))
        line = json.dumps(clean, allow_nan=False) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if self._tensorboard:
                self._mirror(clean)

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """`write` each of `rows`."""
        for row in rows:
            self.write(row)

    def truncate_after(self, env_steps: int) -> None:
        """Forget the rows later than `env_steps` (those of a resumed checkpoint), in TensorBoard too."""
        with self._lock:
            self._file.close()
            self._rewrite([row for row in read_metrics(self._folder) if (row.get("env_steps") or 0) <= env_steps])
            self._file = self._path.open("a", encoding="utf-8")
            self._close_mirrors()
            self._purge = int(env_steps) + 1

    def close(self) -> None:
        """Flush and close everything; closing twice is fine."""
        with self._lock:
            self._file.close()
            self._close_mirrors()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        write_bytes(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode("utf-8"))

    def _mirror(self, row: dict[str, Any]) -> None:
        folder = self._folder / TENSORBOARD
        if row.get("member") is not None:
            folder /= f"member-{row['member']}"
        if folder not in self._mirrors:
            from boonta.experiments.tensorboard import EventsFile

            self._mirrors[folder] = EventsFile(folder, self._purge)
        numbers = {key: value for key, value in row.items() if _is_number(value) and key not in ("env_steps", "member")}
        self._mirrors[folder].write(numbers, int(row.get("env_steps") or 0))

    def _close_mirrors(self) -> None:
        for mirror in self._mirrors.values():
            mirror.close()
        self._mirrors.clear()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of a run folder's log in order, none where there is no log; a half-written last line is left out.

    Raises:
        ValueError: any other line is not a JSON object; the message names the file and the line.
    """
    path = Path(folder) / METRICS
    if not os.path.lexists(path):
        return []
    lines = read_bytes(path, MOST).split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}, must be a JSON object, got {line[:40].decode(errors='replace')}")
        rows.append(row)
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
