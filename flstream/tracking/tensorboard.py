"""Tracker that writes event files for TensorBoard, with a folder for each site."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.text import metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from flstream.tracking.tracker import TrackedRun

FOLDER = "tensorboard"

# Every site has a file. TensorBoard's EventFileWriter would keep it open, with a thread; of a
# thousand sites these are too many. So only the files that were written to last are open.
_MOST_OPEN = 64


class TensorBoard:
    """Writer of ``tensorboard/<source>/events.out.tfevents.*.flstream``.

    The files of the same run that an earlier one has written are removed: this one is given all
    points anew. No other file is touched.

    Args:
        run: The run.

    Raises:
        OSError: A file cannot be removed.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._folder = run.folder / FOLDER
        # The time tells this run's files, whose folder may have been copied, from others.
        name = f"events.out.tfevents.{int(run.began):010d}"
        earlier = re.compile(re.escape(name) + r"\.(\d{4,})\.flstream")
        files = [
            (path, int(match[1]))
            for path in self._folder.glob(f"*/{name}.*")
            if (match := earlier.fullmatch(path.name)) and path.is_file()
        ]
        take = max((number for _, number in files), default=-1) + 1
        for path, _ in files:
            path.unlink(missing_ok=True)
        self._name, self._is_first = f"{name}.{take:04d}.flstream", not take
        self._open: dict[str, RecordWriter] = {}
        self._begun: set[str] = set()

    def scalars(self, source: str, step: int, values: Mapping[str, float], time: float) -> None:
        """Write numbers."""
        numbers = [
            summary_pb2.Summary.Value(tag=key, simple_value=_single(values[key])) for key in values
        ]
        self._write(source, step, summary_pb2.Summary(value=numbers), time)

    def text(self, source: str, step: int, key: str, text: str, time: float) -> None:
        """Write text."""
        value = summary_pb2.Summary.Value(
            tag=f"{key}/text_summary",
            metadata=metadata.create_summary_metadata(display_name=key, description=""),
            tensor=TensorProto(
                dtype="DT_STRING",
                string_val=[text.encode()],
                tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            ),
        )
        self._write(source, step, summary_pb2.Summary(value=[value]), time)

    def flush(self) -> None:
        """Flush the open files."""
        for records in self._open.values():
            records.flush()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._close_oldest()

    def _write(self, source: str, step: int, summary: summary_pb2.Summary, time: float) -> None:
        event = event_pb2.Event(wall_time=time, step=step, summary=summary)
        self._records(source, time).write(event.SerializeToString())

    def _records(self, source: str, time: float) -> RecordWriter:
        records = self._open.pop(source, None)
        if records is None:
            while len(self._open) >= _MOST_OPEN:
                self._close_oldest()
            path = self._folder / source / self._name
            path.parent.mkdir(parents=True, exist_ok=True)
            records = RecordWriter(path.open("ab"))
            if source not in self._begun:
                self._begun.add(source)
                self._begin(records, time)
        self._open[source] = records  # the last one now
        return records

    def _begin(self, records: RecordWriter, time: float) -> None:
        version = event_pb2.Event(wall_time=time, file_version="brain.Event:2")
        records.write(version.SerializeToString())
        if not self._is_first:
            # A TensorBoard that has been watching forgets all points that it has read before.
            log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            start = event_pb2.Event(wall_time=time, step=0, session_log=log)
            records.write(start.SerializeToString())

    def _close_oldest(self) -> None:
        self._open.pop(next(iter(self._open))).close()


def _single(value: float) -> float:
    """Return a number in 32 bits, as the files have it; larger ones are infinite."""
    return math.copysign(math.inf, value) if 3.4028235e38 < abs(value) < math.inf else value
