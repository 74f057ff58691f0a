"""Everything that workers can lease: training or prediction, the evaluation that runs, the errand
of writing a snapshot. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from master.state.actions import Saved
from master.state.data_identity import check_resume, identity
from master.state.evaluation import Evaluations
from master.state.membership import Membership
from master.state.tasks import Pass, TaskQueue, errand
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

_DATA = {"train": "train", "evaluate": "eval", "predict": "predict"}


class Work:
    """The passes of a job, made once the data has been counted and the model file looked at.

    Args:
        resumed: the checkpoint to go on from.
    """

    def __init__(self, config: JobConfig, *, resumed: Saved | None) -> None:
        self.main: Pass | None = None
        """Training or prediction; an evaluation job has none."""
        self.evaluations: Evaluations | None = None
        self.shards: Sequence[Shard] = ()
        """Of the main pass."""
        self.files = ""
        """Digest of the data files of a script; its shard is ``dataset``."""
        self.lockstep = False
        """Nobody leases the main pass: a ring goes through it together, in the order of tasks."""
        self._config = config
        self._resumed = resumed
        self._lease_ids = itertools.count(1)
        self._snapshot: Pass | None = None
        self._snapshot_base = Watermarks()

    # ---- what it says ----

    @property
    def ready(self) -> bool:
        """The data is known: tasks can be leased."""
        return self.main is not None or self.evaluations is not None

    @property
    def trained(self) -> bool:
        """Every training (or prediction) task is done."""
        return self.ready and (self.main is None or self.main.queue.complete)

    @property
    def available(self) -> bool:
        """There is something that nobody has."""
        return any(each.queue.todo for each in self.passes())

    @property
    def queue(self) -> TaskQueue | None:
        """The queue that shows how far the job is: the main one, or that of an evaluation job."""
        if self.main is not None:
            return self.main.queue
        return self.evaluations.queue if self.evaluations is not None else None

    @property
    def retired_before(self) -> int:
        """All training tasks below this id are done."""
        return self.main.queue.retired_before if self.main is not None else 0

    def done(self, members: Membership) -> tuple[int, int]:
        """(records, minibatches): of finished tasks, and what workers told of running ones."""
        if self.main is None:
            return (self.evaluations.records_done if self.evaluations is not None else 0), 0
        queue = self.main.queue
        records, steps = queue.records_done, queue.steps_done
        for member in members:
            # A heartbeat may count what a report has counted since: never more than is open.
            open_records, open_steps = queue.open_steps(member.id)
            records += min(max(0, member.records - member.reported_records), open_records)
            steps += min(max(0, member.steps - member.reported_steps), open_steps)
        return records, steps

    def passes(self) -> list[Pass]:
        """All passes that are leased, the most urgent first."""
        passes = [self._snapshot] if self._snapshot is not None else []
        if self.evaluations is not None:
            passes += self.evaluations.passes()
        if self.main is not None and not self.lockstep:
            passes.append(self.main)
        return passes

    # ---- the data ----

    def begin(
        self, scanned: Mapping[str, Sequence[Shard]], error: str, model: pb.ReportModelRequest
    ) -> str:
        """Makes the queues; returns a line about them.

        Args:
            scanned: ``train``, ``eval`` and ``predict`` to their shards.
            error: why they could not all be counted.
            model: what the model file holds; a source of its own replaces what was scanned.

        Raises:
            UsageError: there is no data, or not that of the checkpoint to go on from.
        """
        config = self._config
        if model.custom_source:
            self.shards = [Shard(s.name, s.records, s.size, s.mtime_ns) for s in model.shards]
        elif error:
            raise UsageError(error)
        else:
            self.shards = scanned.get(_DATA[config.kind], ())
        if not self.shards:
            raise UsageError(
                "no data: name files with --data, or give the model file a data_source"
            )
        if not sum(s.records for s in self.shards):
            names = ", ".join(s.name for s in self.shards[:3])
            raise UsageError(f"{names}: no records in there; name data that has some")
        if self._resumed is not None:
            then = self._resumed.manifest.data
            check_resume(self._resumed.path, then, identity(config, self.shards))
        space = self._space(self.shards, trains=config.kind == "train")
        if config.kind == "evaluate":
            self._evaluate(space)
        elif config.kind == "predict":
            self.main = Pass(pb.TASK_PREDICT, self._queue(space))
        else:
            if scanned.get("eval"):
                self._evaluate(self._space(scanned["eval"], trains=False))
            self.main = Pass(pb.TASK_TRAIN, self._queue(space))
            if self._resumed is not None:
                self.restore(self._resumed)
        return f"{_in_tasks(space)}, {_counted(len(self.shards), 'file')}"

    def begin_script(self, config: JobConfig, data: pb.ScriptData) -> str:
        """Makes the queue of a script whose model is on servers; returns a line about it.

        Tasks are cut from positions in each epoch, in order: the worker knows which record is at
        a position, and shuffles by itself.

        Args:
            config: of the job, with the data of the script's loader.
            data: what the loader goes through.

        Raises:
            UsageError: it is not the data of the checkpoint to go on from.
        """
        self._config = config
        self.shards = [Shard("dataset", data.records)]
        self.files = data.files
        if self._resumed is not None:
            then = self._resumed.manifest.data
            check_resume(self._resumed.path, then, identity(config, self.shards, data.files))
        space = TaskSpace(
            self.shards,
            config.records_per_task,
            epochs=config.data.epochs,
            batch_size=config.data.batch_size,
        )
        self.main = Pass(pb.TASK_TRAIN, self._queue(space))
        if self._resumed is not None:
            self.restore(self._resumed)
        return _in_tasks(space)

    def _space(self, shards: Sequence[Shard], *, trains: bool) -> TaskSpace:
        config = self._config
        if not trains:
            return TaskSpace(shards, config.records_per_task, batch_size=config.data.batch_size)
        return TaskSpace(
            shards,
            config.records_per_task,
            epochs=config.data.epochs,
            seed=config.train.seed,
            shuffle=config.data.shuffle,
            batch_size=config.data.batch_size,
            max_steps=config.train.max_steps,
        )

    def _queue(self, space: TaskSpace) -> TaskQueue:
        timeout_s = self._config.cluster.task_timeout_s
        return TaskQueue(space, lease_ids=self._lease_ids, timeout_s=timeout_s)

    def _evaluate(self, space: TaskSpace) -> None:
        if not space.total:
            raise UsageError("--eval-data: no records in there; name data that has some")
        self.evaluations = Evaluations(
            space,
            every=self._config.train.eval_every if self._config.kind == "train" else 0,
            lease_ids=self._lease_ids,
            timeout_s=self._config.cluster.task_timeout_s,
        )

    # ---- leases ----

    def lease_snapshot(self, worker: int, now: float) -> list[pb.LeaseMessage]:
        """The errand of writing a snapshot, if it is due, for a worker that leaves."""
        if self._snapshot is None:
            return []
        lease = self._snapshot.queue.lease(worker, now)
        if lease is None:
            return []
        if self.main is not None and not self.lockstep:
            self._snapshot_base = self.main.queue.progress()
        return [self._snapshot.message(lease)]

    def lease(
        self,
        worker: int,
        want: int,
        held: Iterable[int],
        now: float,
        *,
        draining: bool,
        snapshots: bool = True,
    ) -> list[pb.LeaseMessage]:
        """Up to ``want`` tasks (at least one is looked for) for a worker that has ``held``.

        Args:
            draining: it gets nothing any more.
            snapshots: it has a model that can be written.
        """
        passes = self.passes()
        held = set(held)
        for each in passes:
            each.queue.keep_only(worker, held)
        leases: list[pb.LeaseMessage] = []
        for each in passes if not draining else ():
            while len(leases) < max(1, want) and (snapshots or each is not self._snapshot):
                lease = each.queue.lease(worker, now)
                if lease is None:
                    break
                if each is self._snapshot and self.main is not None and not self.lockstep:
                    # What is done now is in the model of the worker when it writes it.
                    self._snapshot_base = self.main.queue.progress()
                leases.append(each.message(lease))
        return leases

    def touch(self, worker: int, now: float) -> None:
        """The worker made progress: its leases live on."""
        for each in self.passes():
            each.queue.touch(worker, now)

    def drop_worker(self, worker: int) -> None:
        """Takes back all that a worker has."""
        for each in self.passes():
            each.queue.drop_worker(worker)

    def expire(self, now: float) -> list[int]:
        """Takes back what is held without progress, and returns by whom."""
        return [worker for each in self.passes() for worker in each.queue.expire(now)]

    def void(self) -> None:
        """Takes back every lease, and no late report of them counts."""
        for each in self.passes():
            each.queue.void()

    # ---- snapshots ----

    def ask_for_snapshot(self, directory: str) -> None:
        """A worker that has the whole model is to write it there."""
        self._snapshot = errand(
            pb.TASK_SNAPSHOT,
            "snapshot",
            lease_ids=self._lease_ids,
            timeout_s=self._config.cluster.task_timeout_s,
            directory=directory,
        )

    @property
    def awaits_snapshot(self) -> bool:
        """There is a snapshot to be written that nobody writes."""
        return self._snapshot is not None and not self._snapshot.queue.doing

    def end_snapshot(self) -> Watermarks:
        """The snapshot is written or not wanted any more; what was done before it began."""
        self._snapshot = None
        return self._snapshot_base

    def restore(self, saved: Saved | None) -> None:
        """Training goes back to a checkpoint, or to the beginning; every lease is void."""
        self._snapshot = None
        if self.main is not None:
            self.main.queue.restore(saved.progress if saved is not None else Watermarks())
        if self.evaluations is not None:
            self.evaluations.restore(saved.manifest.steps if saved is not None else 0)


def _in_tasks(space: TaskSpace) -> str:
    return f"{_counted(space.total_records, 'record')} in {_counted(space.total, 'task')}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
