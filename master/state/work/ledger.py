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

from torch_edl.data.stream_space import AnySpace
from torch_edl.data.task_space import TaskSpace
from torch_edl.tables.watermarks import Watermarks

# Names of shards are recorded up to this number, since the stored state holds the line for a while.
_NAMED_SHARDS = 1000
# Lines that are kept while the file cannot be written; older ones are lost, and an audit says so.
_KEPT_LINES = 1000
_NOWHERE = (-1, -1)


def line_of(number: int, time: float, entries: Sequence[Any], before: str) -> tuple[str, str]:
    """Return a line and its hash. ``before`` is the hash of the line before; empty for line 1."""
    text = json.dumps({"n": number, "time": time, "entries": entries})
    found = hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:32]
    return f'{text[:-1]}, "sha": "{found}"}}', found


class TaskLedger:
    """Entries since the last line, and lines that the file may lack."""

    def __init__(self) -> None:
        self._space: AnySpace | None = None
        self._begun = False
        self._entries: list[list[Any]] = []
        self._done: dict[tuple[int, int], list[int]] = {}  # since the last other entry
        self._cut: dict[str, list[list[int]]] = {}  # ranges of these tasks of a stream
        self._position = _NOWHERE
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._count, self._sha, self._ended = 0, "", ""

    def done(self, worker: int, task: int, offset: int) -> None:
        """Record that a worker, -1 if its lease had expired, completed a task from ``offset``."""
        self._done.setdefault((worker, offset), []).append(task)
        self._note_range(task)

    def _note_range(self, task: int) -> None:
        """Record the records of a task of a stream; other tasks are a function of their id."""
        if self._space is not None and not isinstance(self._space, TaskSpace):
            one = self._space.task(task)
            self._cut.setdefault(one.shard, []).append([task, one.start, one.end])

    def add(self, kind: str, *values: Any) -> None:
        """Record an entry of another kind; ``docs/guarantees.md`` lists the kinds."""
        self._entries += [["cut", shard, ranges] for shard, ranges in self._cut.items()]
        for (worker, offset), tasks in self._done.items():
            self._entries.append(["done", worker, offset, runs_of(tasks)])
        self._cut.clear()
        self._done.clear()
        self._entries += [[kind, *values]] if kind else []

    def heard(self, heartbeat: Any) -> None:
        """Record the position of a ring that a member reports, unless an entry has it or a later
        one."""
        place = (heartbeat.pass_index, heartbeat.position)
        if place <= self._position:
            return
        self._position = place
        if self._entries and self._entries[-1][:2] == ["position", place[0]]:
            self._entries.pop()
        before, left = heartbeat.records_before, heartbeat.records_left
        self.add("position", *place, heartbeat.pass_records, before, left)

    def begin(self, space: Any) -> None:
        """Record what the ids of tasks mean, once in a training. A restarted master calls this
        again."""
        self._space = space
        if self._begun:
            return
        self._begun = True
        shards = [[s.name, s.records] for s in space.shards] if isinstance(space, TaskSpace) else []
        named = {"shards": shards} if len(shards) <= _NAMED_SHARDS else {"unnamed": len(shards)}
        kind = "tasks" if isinstance(space, TaskSpace) else "stream"
        names = ("records_per_task", "epochs", "batch_size", "seed", "shuffle")
        order = {name: getattr(space, name) for name in names if hasattr(space, name)}
        self.add("begin", {"of": kind, **order, **named})

    def begin_training(self, number: int, total: int) -> None:
        """Record that another training of a script begins. Its tasks are numbered from 0. The
        training before had ``total`` tasks; 0: none."""
        self.add("training", number, total)
        self._space, self._begun, self._position = None, False, _NOWHERE

    def restored(self, progress: Watermarks) -> None:
        """Record that the job goes on from the progress of a checkpoint, or of its servers."""
        self._position = _NOWHERE
        parts, whole = dict(progress.offsets), []
        if (space := self._space) is not None:
            tasks = [id for id in parts if progress.retired_before <= id < space.total]
            whole = [id for id in tasks if parts[id] >= space.task(id).records]
        for task in whole:
            del parts[task]
            self._note_range(task)
        self.add("restored", progress.retired_before, sorted(parts.items()), runs_of(whole))

    def close_line(self, time: float, outcome: str, total: int, written: int) -> None:
        """Make a line of the entries, if there are any, and drop the lines up to number
        ``written``, which are in the file. ``outcome`` is that of the job or empty, ``total`` the
        number of its tasks; 0: it leases none."""
        while self._lines and self._count - len(self._lines) < written:
            self._lines.popleft()
        self.add("")
        if outcome and (self._entries or outcome != self._ended):
            self.add("end", outcome, total)
        if self._entries:
            self._count, self._ended = self._count + 1, outcome
            line, self._sha = line_of(self._count, round(time, 3), self._entries, self._sha)
            self._lines.append(line)
            self._entries = []

    def to_state(self) -> dict[str, Any]:
        return {
            "begun": self._begun,
            "position": self._position,
            "count": self._count,
            "sha": self._sha,
            "lines": list(self._lines),
        }

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._begun, self._position = state["begun"], tuple(state["position"])
        self._count, self._sha = state["count"], state["sha"]
        self._lines.extend(state["lines"])


def runs_of(tasks: Iterable[int]) -> str:
    """Return ids as ``3-7,9``."""
    runs: list[list[int]] = []
    for task in sorted(tasks):
        if runs and task == runs[-1][1] + 1:
            runs[-1][1] = task
        else:
            runs.append([task, task])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
