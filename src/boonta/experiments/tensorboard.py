"""Numbers in the form that TensorBoard reads: one event a row, written by whoever logs, without a queue or a thread."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2, summary_pb2
from tensorboardX.summary import scalar

# Their classes are made when they are imported, so that no type checker knows them.
_event: Any = event_pb2
_summary: Any = summary_pb2


class EventsFile:
    """A new file of events.

    Args:
        folder: where it is made.
        purge: what earlier files of the folder hold of this step and later is hidden; None to hide nothing.
    """

    def __init__(self, folder: Path, purge: int | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = EventsWriter(str(folder / "events"), f".{os.getpid()}.{time.time_ns()}")
        if purge is not None:
            start = _event.SessionLog(status=_event.SessionLog.START)
            self._file.write_event(_event.Event(step=purge, session_log=start))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add a row."""
        summary = _summary.Summary()
        for name, number in numbers.items():
            summary.MergeFrom(scalar(name, number))
        self._file.write_event(_event.Event(wall_time=time.time(), step=step, summary=summary))
        self._file.flush()

    def close(self) -> None:
        """Nothing can be written any more."""
        self._file.close()
