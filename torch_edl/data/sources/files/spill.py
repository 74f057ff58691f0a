"""Decoded rows of large row groups, on disk: decoded once, and read in slices.

Tasks come in any order, and a row group can only be decoded from its start. Kept in memory, one of
the default size (a million rows) takes hundreds of megabytes, in each worker. The files lie in the
folder for temporary files (``TMPDIR``), have no name there, and go with the process.
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
"""Kept on disk per process, over all sources; the newest is always kept."""


class SpilledRows:
    """The rows of one row group, in a file without a name, which is gone with this object.

    Rows are appended by one thread, and then read by any number.

    Raises:
        OSError: of the constructor and of :meth:`append`: there is no room.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="torch-edl-", buffering=0)  # noqa: SIM115
        self._ends: list[int] = []
        self._places: list[tuple[int, int]] = []
        self.bytes = 0

    def append(self, batch: Any) -> None:
        """Writes a ``pyarrow.RecordBatch`` behind those before."""
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
        """The rows ``start .. end - 1``, at least one, as a ``pyarrow.Table``."""
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
    """What is on disk, least recently used first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[Hashable, SpilledRows] = OrderedDict()

    def get(self, key: Hashable) -> SpilledRows | None:
        """The rows of a row group; None: they are not on disk."""
        with self._lock:
            found = self._rows.get(key)
            if found is not None:
                self._rows.move_to_end(key)
            return found

    def put(self, key: Hashable, rows: SpilledRows) -> None:
        """Keeps rows, and lets go of others where there are too many. A reader of those has them
        to its end."""
        with self._lock:
            self._rows.setdefault(key, rows)  # Two threads may have decoded them at once.
            while len(self._rows) > 1 and sum(r.bytes for r in self._rows.values()) > SPILL_BYTES:
                self._rows.popitem(last=False)
