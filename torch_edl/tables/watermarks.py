"""Which records are in the model: a high-water mark for each live task. Pure: no locks, no clock.

A task's records are applied in order, so one offset says all of it; a task that the master calls
retired is in the model whole and needs no mark.
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
    """What is applied: every task below ``retired_before``, and of others what lies before their
    offset."""

    retired_before: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def offset(self, task_id: int) -> int:
        """The first record of the task that is not applied; ``WHOLE`` for a retired one."""
        return WHOLE if task_id < self.retired_before else self.offsets.get(task_id, 0)

    def has(self, task_id: int, first: int, last: int) -> bool:
        """Whether the records ``[first, last)`` are applied already; if not, they are next.

        Raises:
            UsageError: the range is empty, leaves a gap, or is applied in part.
        """
        mark = self.offset(task_id)
        if not 0 <= first < last:
            raise UsageError(f"records [{first}, {last}) of task {task_id}: an empty range")
        if last <= mark:
            return True
        if first != mark:
            what = "leaves a gap" if first > mark else "is applied in part"
            raise UsageError(
                f"records [{first}, {last}) of task {task_id}: {what}, {mark} are applied; "
                f"push from record {mark}"
            )
        return False

    def advance(self, task_id: int, last: int) -> None:
        """The task is applied up to ``last``."""
        if task_id >= self.retired_before:
            self.offsets[task_id] = max(last, self.offsets.get(task_id, 0))

    def retire(self, before: int) -> None:
        """Every task below ``before`` is done; their watermarks go."""
        if before > self.retired_before:
            self.retired_before = before
            self.offsets = {t: o for t, o in self.offsets.items() if t >= before}

    def reached(self, targets: Watermarks) -> bool:
        """Whether every record of ``targets`` is applied here.

        What ``targets`` calls retired was acknowledged by every server, this one included.
        """
        return all(self.offset(t) >= o for t, o in targets.offsets.items())

    def copy(self) -> Watermarks:
        """An independent copy."""
        return Watermarks(self.retired_before, dict(self.offsets))

    @staticmethod
    def union(all_marks: Iterable[Watermarks]) -> Watermarks:
        """What at least one of them has."""
        result = Watermarks()
        for watermarks in all_marks:
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
