"""The ledger of a job: which worker completed which training task, and what was returned and why.

The entries become numbered lines, each with a hash over the line before. Lines are part of the
stored state until the runtime has appended them to ``tasks.jsonl``, so the file never claims what a
restarted master does not know. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_edl.data.task_space import TaskSpace
from torch_edl.tables.watermarks import Watermarks

# Names of shards are recorded up to this number, since the stored state holds the line for a while.
_NAMED_SHARDS = 1000
# Lines that are kept while the file cannot be written; older ones are lost, and an audit says so.
_KEPT_LINES = 1000


def line_of(number: int, time: float, entries: Sequence[Any], before: str) -> tuple[str, str]:
    """Return a line and its hash. ``before`` is the hash of the line before; empty for line 1."""
    text = json.dumps({"n": number, "time": time, "entries": entries})
    found = hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:32]
    return f'{text[:-1]}, "sha": "{found}"}}', found


class TaskLedger:
    """Entries since the last line, and lines that the file may lack."""

    def __init__(self) -> None:
        self._entries: list[list[Any]] = []
        self._done: dict[tuple[int, int], list[int]] = {}  # since the last other entry
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._count, self._sha, self._ended = 0, "", ""

    def done(self, worker: int, task: int, offset: int) -> None:
        """Record that a worker, -1 if its lease had expired, completed a task from ``offset``."""
        self._done.setdefault((worker, offset), []).append(task)

    def add(self, kind: str, *values: Any) -> None:
        """Record an entry of another kind; ``docs/guarantees.md`` lists the kinds."""
        for (worker, offset), tasks in self._done.items():
            self._entries.append(["done", worker, offset, _runs(tasks)])
        self._done.clear()
        if kind == "position" and self._entries and self._entries[-1][:2] == [kind, values[0]]:
            self._entries.pop()
        self._entries += [[kind, *values]] if kind else []

    def begin(self, space: Any) -> None:
        """Record what the ids of tasks mean."""
        shards = [[s.name, s.records] for s in space.shards] if isinstance(space, TaskSpace) else []
        named = {"shards": shards} if len(shards) <= _NAMED_SHARDS else {"unnamed": len(shards)}
        kind = "tasks" if isinstance(space, TaskSpace) else "stream"
        names = ("records_per_task", "epochs", "batch_size", "seed", "shuffle")
        order = {name: getattr(space, name) for name in names if hasattr(space, name)}
        self.add("begin", {"of": kind, **order, **named})

    def restored(self, progress: Watermarks) -> None:
        """Record that the job goes on from the progress of a checkpoint."""
        self.add("restored", progress.retired_before, sorted(progress.offsets.items()))

    def close_line(self, time: float, outcome: str, total: int) -> None:
        """Make a line of the entries, if there are any. ``outcome`` is that of the job or empty,
        ``total`` the number of its tasks; 0: it leases none."""
        self.add("")
        if outcome and (self._entries or outcome != self._ended):
            self.add("end", outcome, total)
        if self._entries:
            self._count, self._ended = self._count + 1, outcome
            line, self._sha = line_of(self._count, round(time, 3), self._entries, self._sha)
            self._lines.append(line)
            self._entries = []

    def forget(self, written: int) -> None:
        """Drop the lines up to number ``written``, which are in the file."""
        while self._lines and self._count - len(self._lines) < written:
            self._lines.popleft()

    def to_state(self) -> dict[str, Any]:
        return {"count": self._count, "sha": self._sha, "lines": list(self._lines)}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._count, self._sha = state["count"], state["sha"]
        self._lines.extend(state["lines"])


def _runs(tasks: Iterable[int]) -> str:
    """Return ids as ``3-7,9``."""
    runs: list[list[int]] = []
    for task in sorted(tasks):
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
