"""Counters of a server, kept where its calls are answered and read once per heartbeat."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.frequent_ids import FrequentIds
from torch_edl.ps_server.shard import ModelShard
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import Answer, Later, Quick, QuickAnswer

_SECONDS = [b * 10.0**e for e in range(-4, 1) for b in (1, 2.5, 5)] + [10.0]
_UPDATES = [0.0, *(2.0**e for e in range(11))]


class Histogram:
    """Counts of values by bucket. The caller serializes the calls.

    Args:
        bounds: largest value of each bucket, ascending; one more bucket has the larger values.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def to_proto(self) -> pb.Histogram:
        """Return the counts so far."""
        return pb.Histogram(bounds=self._bounds, counts=self._counts, sum=self._sum)


class CallCounts:
    """Pulls and pushes of one server by duration, staleness of pushes, and the lag of its log."""

    def __init__(self, shard: ModelShard, log: ChangeLog | None) -> None:
        self._shard, self._log = shard, log
        self._lock = threading.Lock()
        self._seconds = {name: Histogram(_SECONDS) for name in ("pull", "push_gradients")}
        self._staleness = Histogram(_UPDATES)
        self._frequent_ids = FrequentIds()
        self._commits: dict[object, float] = {}  # starts of waits for durability, oldest first

    def pushed(self, staleness: int) -> None:
        """Count a push whose parameters were ``staleness`` updates old."""
        with self._lock:
            self._staleness.add(max(0, staleness))

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Surround the wait until a change is durable."""
        key = object()
        with self._lock:
            self._commits[key] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._commits[key]

    def timed(self, answer: Answer, name: str) -> Answer:
        """Return an answer whose duration is counted; a call that raises is not."""

        def counted(given: Framed, may_wait: bool) -> Framed | Later:
            began = time.perf_counter()
            found = answer(given, may_wait)
            if isinstance(found, Later):
                return Later(found.answer, self._timed_wait(found.wait, name, began))
            self._add(name, began)
            return found

        return counted

    def timed_quick(self, answer: QuickAnswer) -> QuickAnswer:
        """Return a quick answer whose duration is counted, unless the call is unusual."""

        def counted(pieces: Sequence[Any], memory: Any, most_bytes: int) -> Quick | None:
            began = time.perf_counter()
            found = answer(pieces, memory, most_bytes)
            if found is not None and found.wait is not None:
                return found._replace(wait=self._timed_wait(found.wait, found.name, began))
            if found is not None:
                self._add(found.name, began)
            return found

        return counted

    def to_proto(self, with_frequent_ids: bool = False) -> pb.ServerCounts:
        """Return the counts so far, and the current sizes of the tables."""
        with self._lock:
            oldest = next(iter(self._commits.values()), None)
            counts = pb.ServerCounts(
                pull_s=self._seconds["pull"].to_proto(),
                push_s=self._seconds["push_gradients"].to_proto(),
                staleness=self._staleness.to_proto(),
                journal_lag_s=0.0 if oldest is None else time.monotonic() - oldest,
                journal_bytes=self._log.bytes if self._log else 0,
            )
        for table in list(self._shard.tables.values()):
            core = table.core
            counts.tables.add(
                name=table.name, rows=core.size, bytes=core.bytes, evicted=table.evicted
            )
        if with_frequent_ids:
            self._frequent_ids(self._shard.tables, counts)
        return counts

    def _timed_wait(self, wait: Callable[[], None], name: str, began: float) -> Callable[[], None]:
        def counted() -> None:
            wait()
            self._add(name, began)

        return counted

    def _add(self, name: str, began: float) -> None:
        seconds = time.perf_counter() - began
        with self._lock:
            self._seconds[name].add(seconds)
