"""Decoded rows of large row groups on disk, decoded once and read in slices.

Tasks are read in any order, and a row group can only be decoded from its start. In memory, a row
group of the default size (a million rows) would take hundreds of megabytes in each worker. The
files are unnamed files in the folder of temporary files (``TMPDIR``), which are removed when the
process ends.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa

SPILL_BYTES = 1 << 30
"""Maximum size on disk per process, over all sources; the newest row group is always kept."""


class SpilledRows:
    """The rows of one row group, in an unnamed file that is removed with this object.

    One thread appends all rows; afterwards any number of threads may read.

    Attributes:
        bytes: size of the file in bytes.

    Raises:
        OSError: the disk is full, in the constructor and in :meth:`append`.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="torch-edl-", buffering=0)  # noqa: SIM115
        self._ends: list[int] = []
        self._places: list[tuple[int, int]] = []
        self.bytes = 0

    def append(self, batch: Any) -> None:
        """Append a ``pyarrow.RecordBatch``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        rest = memoryview(sink.getvalue())
        self._places.append((self.bytes, len(rest)))
        self._ends.append((self._ends[-1] if self._ends else 0) + len(batch))
        self.bytes += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]

    def read(self, start: int, end: int) -> Any:
        """Return the rows ``start .. end - 1``, at least one, as a ``pyarrow.Table``."""
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, end, side="left"))
        rows = pa.concat_tables([self._batch(number) for number in range(first, last + 1)])
        return rows.slice(start - (self._ends[first - 1] if first else 0), end - start)

    def _batch(self, number: int) -> Any:
        offset, left = self._places[number]
        parts = []
        while left:
            parts.append(os.pread(self._file.fileno(), left, offset))
            if not parts[-1]:
                raise OSError(f"a temporary file in {tempfile.gettempdir()} was cut short")
            offset, left = offset + len(parts[-1]), left - len(parts[-1])
        return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_all()


class Spills:
    """A least recently used cache of row groups on disk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[Hashable, SpilledRows] = OrderedDict()

    def get(self, key: Hashable) -> SpilledRows | None:
        """Return the rows of a row group; None: not on disk."""
        with self._lock:
            found = self._rows.get(key)
            if found is not None:
                self._rows.move_to_end(key)
            return found

    def put(self, key: Hashable, rows: SpilledRows) -> None:
        """Add rows, and release old row groups above the limit. A file is removed when its last
        reader has finished."""
        with self._lock:
            self._rows.setdefault(key, rows)  # two threads may have decoded them
            while len(self._rows) > 1 and sum(r.bytes for r in self._rows.values()) > SPILL_BYTES:
                self._rows.popitem(last=False)
