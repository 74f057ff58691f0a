"""The ids with the most updates, of each table of a parameter server.

Each row of a table has the exact number of its updates, which admission and checkpoints need
anyway, so pulls and pushes do no work for this. While somebody looks, a thread walks over the
metadata of all rows, and at most 1% of its time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping

from torch_edl.tables.table import EmbeddingTable, Ids
from torch_edl.wire import master_pb2 as pb

MOST = 20
"""Number of ids of one table."""
_MOST_TABLES = 100
_EVERY_S = 10.0
_SHARE = 0.01
# A heartbeat waits this long for the first walk: 0.2 s are enough for some ten million rows.
_WAIT_S = 0.2


class FrequentIds:
    """The newest result of a walk, added to the counters of a heartbeat.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = -math.inf
        self._found: dict[str, tuple[int, Ids, Ids]] = {}
        self._thread: threading.Thread | None = None

    def __call__(self, tables: Mapping[str, EmbeddingTable], counts: pb.ServerCounts) -> None:
        """Add the ids of the newest walk to ``counts``, and begin the next walk if it is due."""
        if self._clock() >= self._due:
            self._due = math.inf
            kept = list(tables.values())[:_MOST_TABLES]
            self._thread = threading.Thread(
                target=self._walk, args=(kept,), name="frequent-ids", daemon=True
            )
            self._thread.start()
            self._thread.join(_WAIT_S)
        for table in counts.tables:
            if found := self._found.get(table.name):
                table.updates, ids, updates = found
                table.frequent_ids.extend(ids.tolist())
                table.frequent_updates.extend(updates.tolist())

    def wait(self) -> None:
        """Wait for the end of the walk."""
        if self._thread is not None:
            self._thread.join()

    def _walk(self, tables: list[EmbeddingTable]) -> None:
        began = self._clock()
        try:
            self._found = {t.name: (t.step, *t.core.most_updated(MOST)) for t in tables}
        finally:
            now = self._clock()
            self._due = now + max(_EVERY_S, (now - began) / _SHARE)
