"""The preprocessing of a job, fitted once before any worker trains. Pure.

Workers lease the tasks of one pass over the training data, and the statistics of each task are
merged once. Workers train after the result is stored in a file, so that restarted masters and all
checkpoints have it. A model file declares its preprocessing, and a script requests it by a call.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from master.state.actions import Failure, KeepPreprocessing, PreprocessingKept
from master.state.work.tasks import TaskQueue
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.events import PreprocessingFitted
from torch_edl.interfaces.preprocessing import FitStatistics, Fittable, of_spec
from torch_edl.wire import master_pb2 as pb

# Upper bound on the statistics of a running pass in the stored state, in bytes.
_MOST_BYTES = 1 << 20
# Tasks of a script's pass, and the largest number of records per task: its data may be small.
_TASKS, _RECORDS_PER_TASK = 64, 1 << 15


class Fitting:
    """The state of a job's preprocessing.

    Args:
        kept: fitted preprocessing from a checkpoint or an earlier master; empty if there is none.
        new_queue: makes the tasks of a pass.
    """

    def __init__(self, kept: bytes, new_queue: Callable[..., TaskQueue]) -> None:
        self._new_queue = new_queue
        self.content = kept
        """Declaration and fitted values, for workers; empty until fitted, or if none is
        declared."""
        self.queue: TaskQueue | None = None
        """Tasks of the running pass; None if none runs."""
        self._kept = bool(kept)
        self._columns: Fittable | None = None
        self._statistics: FitStatistics | None = None
        self._actions: list[KeepPreprocessing] = []
        self._asked: tuple[str, Sequence[Shard]] | None = None
        self._left: tuple[Mapping[str, Any], float] | None = None

    @property
    def ready(self) -> bool:
        """True if workers may train."""
        return self._columns is None or self._kept

    @property
    def todo(self) -> int:
        """Number of tasks of the pass that are not leased."""
        return self.queue.todo if self.queue is not None else 0

    def ask(self, spec: str, shards: Sequence[Shard], *, trains: bool = False) -> None:
        """Begin the pass of a script. All processes of the script call this; the first call begins.

        Args:
            spec: the declaration.
            shards: the records to fit on.
            trains: the job already has training tasks, after which no pass can begin.

        Raises:
            UsageError: the declaration or the data differ from another process's or from the loaded
                model's, or training has begun.
        """
        asked = (spec, tuple(shards))
        if self._asked is None:
            if trains:
                raise UsageError(
                    "job.fit(): training has begun; call it before the loop over the loader"
                )
            total = sum(shard.records for shard in shards)
            each = min(_RECORDS_PER_TASK, -(-total // _TASKS))
            self.begin(spec, TaskSpace(shards, each))
            self._asked = asked
        elif self._asked[0] != spec:
            raise UsageError(
                "job.fit(): this job fits other columns already; declare all outputs in one "
                "Columns(...), the same in every process"
            )
        elif self._asked != asked:
            raise UsageError(
                "job.fit(): the data are not the same in every process: their names, numbers of "
                "records or sizes differ"
            )

    def begin(self, spec: str, space: TaskSpace | None) -> None:
        """Begin the pass, once the model and the data are known.

        Args:
            spec: the declaration; empty if the model file has none.
            space: the training data, in order; None if there is none, or it has no end.

        Raises:
            UsageError: the stored preprocessing is of other columns, or is missing in a job without
                training.
        """
        if not spec:
            return
        self._columns = of_spec(spec)
        if self._kept:
            try:
                self._columns.load_bytes(self.content, source="the preprocessing of the model")
            except CheckpointError as error:
                raise UsageError(str(error)) from None
        elif not self._columns.needs_fit:
            self._keep()
        elif space is None:
            raise UsageError(
                "the model has no preprocessing with it, and its file declares one that is fitted; "
                "train the model with this file, on data that have an end"
            )
        else:
            self.queue = self._new_queue(space, kind=pb.TASK_FIT)
            self._statistics = self._columns.statistics()
            self._continue()

    def observed(self, statistics: bytes) -> PreprocessingFitted | None:
        """Merge the statistics of a done task; the last one ends the pass. Raises UsageError if
        there are more distinct values than can be counted."""
        assert self.queue is not None
        assert self._statistics is not None
        assert self._columns is not None
        self._statistics.merge(statistics)
        if not self.queue.complete:
            return None
        records = self.queue.space.total_records
        self._columns.finish(self._statistics)
        self.queue = self._statistics = None
        self._keep()
        return PreprocessingFitted(records=records)

    def _keep(self) -> None:
        assert self._columns is not None
        self.content = self._columns.to_bytes()
        self._actions.append(KeepPreprocessing(self.content))

    def take_actions(self) -> list[KeepPreprocessing]:
        """Return the actions that were requested since the last call."""
        taken, self._actions = self._actions, []
        return taken

    def kept(self, event: PreprocessingKept) -> list[Failure]:
        """Record the result of writing the file. An error makes the job fail."""
        self._kept = not event.error
        return [Failure(f"the preprocessing cannot be kept: {event.error}")] * bool(event.error)

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """Return the state for a restarted master, as JSON values. A pass with more than a megabyte
        of statistics is left out: a restarted master begins it again, with the same result."""
        state: dict[str, Any] = {"asked": None, "pass": None}
        if self._asked is not None:
            spec, shards = self._asked
            state["asked"] = [spec, [astuple(shard) for shard in shards]]
        queue, statistics = self.queue, self._statistics
        if queue is not None and statistics is not None and statistics.nbytes <= _MOST_BYTES:
            content = base64.b64encode(statistics.to_bytes()).decode()
            state["pass"] = {"tasks": queue.to_state(), "statistics": content}
        return state

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned; :meth:`begin` resumes the pass of a model
        file."""
        self._left = (state["pass"], now) if state["pass"] is not None else None
        if state["asked"] is not None:
            spec, shards = state["asked"]
            self.ask(spec, [Shard(*shard) for shard in shards])

    def _continue(self) -> None:
        if self._left is None or self.queue is None or self._statistics is None:
            return
        (state, now), self._left = self._left, None
        self.queue.from_state(state["tasks"], now)
        self._statistics.merge(base64.b64decode(state["statistics"]))
