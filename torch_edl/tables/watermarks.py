"""Which records are in the model: a high-water mark for each live task. Pure: no locks, no clock.

The records of a task are applied in order, so one offset is enough. A retired task is in the model
as a whole and needs no watermark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch_edl.errors import UsageError
from torch_edl.wire import pserver_pb2 as pb

WHOLE = (1 << 63) - 1
"""The offset of a retired task: beyond every record."""


@dataclass
class Watermarks:
    """The records that are applied: all of every task below ``retired_before``, and of the other
    tasks those below their offset."""

    retired_before: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def offset(self, task_id: int) -> int:
        """The first record of the task that is not applied; ``WHOLE`` for a retired task."""
        return WHOLE if task_id < self.retired_before else self.offsets.get(task_id, 0)

    def has(self, task_id: int, first: int, last: int) -> bool:
        """Whether the records ``[first, last)`` are applied; if not, they are the next ones.

        Raises:
            UsageError: the range is empty, leaves a gap, or is applied in part.
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
        """The records of the task below ``last`` are applied."""
        if task_id >= self.retired_before:
            self.offsets[task_id] = max(last, self.offsets.get(task_id, 0))

    def retire(self, before: int) -> None:
        """Every task below ``before`` is done; their offsets are dropped."""
        if before > self.retired_before:
            self.retired_before = before
            self.offsets = {t: o for t, o in self.offsets.items() if t >= before}

    def reached(self, targets: Watermarks) -> bool:
        """Whether every record of ``targets`` is applied here.

        Every server, this one included, has acknowledged the retired tasks of ``targets``.
        """
        return all(self.offset(t) >= o for t, o in targets.offsets.items())

    def copy(self) -> Watermarks:
        """An independent copy."""
        return Watermarks(self.retired_before, dict(self.offsets))

    @staticmethod
    def union(several: Iterable[Watermarks]) -> Watermarks:
        """The records that at least one of them has."""
        result = Watermarks()
        for watermarks in several:
            result.retire(watermarks.retired_before)
            for task_id, offset in watermarks.offsets.items():
                if offset:
                    result.advance(task_id, offset)
        return result

    def to_proto(self) -> pb.Watermarks:
        """The message."""
        tasks = [pb.Watermark(task_id=t, offset=o) for t, o in sorted(self.offsets.items())]
        return pb.Watermarks(retired_before=self.retired_before, tasks=tasks)

    @classmethod
    def from_proto(cls, message: pb.Watermarks) -> Watermarks:
        """What :meth:`to_proto` wrote."""
        return cls(message.retired_before, {m.task_id: m.offset for m in message.tasks})
