"""Which records the model contains: one offset for each live task.

The records of a task are applied in order, so one offset is enough. All records of a retired task
are in the model, so it needs no offset. This module is pure: it has no locks and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_edl.errors import UsageError
from torch_edl.typed_json import Count
from torch_edl.wire import pserver_pb2 as pb

WHOLE = (1 << 63) - 1
"""Offset of a retired task, larger than every record number."""


@dataclass
class Watermarks:
    """The set of applied records.

    All records of the tasks below ``retired_before`` are applied; of every other task, the records
    below its offset are applied.
    """

    retired_before: Count = 0
    offsets: dict[Count, Count] = field(default_factory=dict)

    def offset(self, task_id: int) -> int:
        """Return the first record of the task that is not applied; ``WHOLE`` if it is retired."""
        return WHOLE if task_id < self.retired_before else self.offsets.get(task_id, 0)

    def has(self, task_id: int, first: int, last: int) -> bool:
        """Return True if the records ``[first, last)`` are applied, False if they come next.

        Raises:
            UsageError: the range is empty, leaves a gap, or is partly applied.
        """
        applied = self.offset(task_id)
        if not 0 <= first < last:
            raise UsageError(f"records [{first}, {last}) of task {task_id}: an empty range")
        if last <= applied:
            return True
        if first != applied:
            what = "leaves a gap" if first > applied else "is applied in part"
            raise UsageError(
                f"records [{first}, {last}) of task {task_id}: {what}, {applied} are applied; "
                f"push from record {applied}"
            )
        return False

    def advance(self, task_id: int, last: int) -> None:
        """Mark the records of the task below ``last`` as applied."""
        if task_id >= self.retired_before:
            self.offsets[task_id] = max(last, self.offsets.get(task_id, 0))

    def retire(self, before: int) -> None:
        """Mark every task below ``before`` as complete and drop their offsets."""
        if before > self.retired_before:
            self.retired_before = before
            self.offsets = {t: o for t, o in self.offsets.items() if t >= before}

    def reached(self, targets: Watermarks) -> bool:
        """Return True if every record of ``targets`` is applied here.

        Only offsets are compared, because every server has acknowledged the retired tasks of
        ``targets``.
        """
        return all(self.offset(t) >= o for t, o in targets.offsets.items())

    def copy(self) -> Watermarks:
        """Return an independent copy."""
        return Watermarks(self.retired_before, dict(self.offsets))

    @staticmethod
    def union(several: Iterable[Watermarks]) -> Watermarks:
        """Return the records that at least one of the watermarks contains."""
        result = Watermarks()
        for watermarks in several:
            result.retire(watermarks.retired_before)
            for task_id, offset in watermarks.offsets.items():
                if offset:
                    result.advance(task_id, offset)
        return result

    def to_proto(self) -> pb.Watermarks:
        """Return the message."""
        tasks = [pb.Watermark(task_id=t, offset=o) for t, o in sorted(self.offsets.items())]
        return pb.Watermarks(retired_before=self.retired_before, tasks=tasks)

    @classmethod
    def from_proto(cls, message: pb.Watermarks) -> Watermarks:
        """Decode a message of :meth:`to_proto`."""
        return cls(message.retired_before, {m.task_id: m.offset for m in message.tasks})
