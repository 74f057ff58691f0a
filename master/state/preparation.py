"""What a job needs to know before it can train: its strategy, from the model, and its tasks, from
the data. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from master.state.actions import DataScanned, Saved
from master.state.data_identity import check_resume, check_same, identity
from master.state.task_scheduler import TaskScheduler
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.engine.choose import Choice, EmbeddingSize, choose
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb

_DATA = {"train": "train", "evaluate": "eval", "predict": "predict"}


class Preparation:
    """Chooses the strategy, and makes the tasks once the data has been counted.

    Args:
        resumed: the checkpoint to go on from.
    """

    def __init__(self, config: JobConfig, tasks: TaskScheduler, *, resumed: Saved | None) -> None:
        self.config = config
        """With the data of its loader, where the job is a script on servers."""
        self._tasks = tasks
        self._resumed = resumed
        self._model: pb.ReportModelRequest | None = None
        self._data: pb.ScriptData | None = None
        self._scanned: DataScanned | None = None

    @property
    def complete(self) -> bool:
        """Workers may begin; a script reports its data later."""
        return self._model is not None and (self._tasks.ready or self.config.kind == "script")

    @property
    def model_is_known(self) -> bool:
        """A worker has reported its model."""
        return self._model is not None

    def choose(self, model: pb.ReportModelRequest, workers: int) -> Choice:
        """The strategy of the job, from what its model file holds.

        Raises:
            UsageError: the strategy that was asked for is not possible.
        """
        config = self.config
        embeddings = [
            EmbeddingSize(
                name=e.name, num_embeddings=e.num_embeddings, dim=e.dim, dynamic=e.dynamic
            )
            for e in model.embeddings
        ]
        return choose(
            config.train.strategy,
            embeddings,
            max_workers=workers,
            large_embedding=config.train.large_embedding,
            # Nothing is optimized in an evaluation or a prediction.
            optimizer_error=model.optimizer_error if config.trains else "",
            trains=config.trains,
            script=config.kind == "script",
        )

    def reported(self, model: pb.ReportModelRequest) -> None:
        """The model is known."""
        self._model = model

    def scanned(self, event: DataScanned) -> None:
        """The sources are counted."""
        self._scanned = event

    def make_tasks(self) -> str:
        """Makes the tasks of a model file; returns a line about them, empty if it is too early.

        Raises:
            UsageError: there is no data, or not that of the checkpoint to go on from.
        """
        scanned, model, config = self._scanned, self._model, self.config
        if scanned is None or model is None or self._tasks.ready:
            return ""
        if model.custom_source:
            shards = [Shard(s.name, s.records, s.size, s.mtime_ns) for s in model.shards]
        elif scanned.error:
            raise UsageError(scanned.error)
        else:
            shards = list(scanned.shards.get(_DATA[config.kind], ()))
        if not shards:
            raise UsageError(
                "no data: name files with --data, or give the model file a data_source"
            )
        if not sum(s.records for s in shards):
            names = ", ".join(s.name for s in shards[:3])
            raise UsageError(f"{names}: no records in there; name data that has some")
        made = identity(config, shards)
        if self._resumed is not None:
            check_resume(self._resumed.path, self._resumed.manifest.data, made)
        space, eval_space = self._space(shards, trains=config.kind == "train"), None
        if config.kind == "evaluate":
            eval_space = space
        elif config.kind == "train" and scanned.shards.get("eval"):
            eval_space = self._space(scanned.shards["eval"], trains=False)
        if eval_space is not None and not eval_space.total:
            raise UsageError("--eval-data: no records in there; name data that has some")
        main = space if config.kind != "evaluate" else None
        self._tasks.begin(main, eval_space, shards=shards, identity=made, resumed=self._resumed)
        return f"{_in_tasks(space)}, {_counted(len(shards), 'file')}"

    def is_new(self, data: pb.ScriptData) -> bool:
        """Whether a worker of a script is the first that reports its data.

        Raises:
            UsageError: no model was reported, or another worker reported other data.
        """
        if self._model is None:
            raise UsageError("the model is to be reported before its data")
        if self._data is not None:
            check_same(self._data, data)
        return self._data is None

    def make_script_tasks(self, config: JobConfig, data: pb.ScriptData) -> str:
        """Makes the tasks of a script on servers; returns a line about them.

        Tasks are cut from positions in each epoch, in order: the worker knows which record is at
        a position, and shuffles by itself.

        Args:
            config: see :func:`master.state.data_identity.with_data`.

        Raises:
            UsageError: the data is not that of the checkpoint to go on from.
        """
        self._data = data
        shards = [Shard("dataset", data.records)]
        made = identity(config, shards, data.files)
        if self._resumed is not None:
            check_resume(self._resumed.path, self._resumed.manifest.data, made)
        space = TaskSpace(
            shards,
            config.records_per_task,
            epochs=config.data.epochs,
            batch_size=config.data.batch_size,
        )
        self.config = config
        self._tasks.begin(space, None, shards=shards, identity=made, resumed=self._resumed)
        return _in_tasks(space)

    def _space(self, shards: Sequence[Shard], *, trains: bool) -> TaskSpace:
        config = self.config
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


def _in_tasks(space: TaskSpace) -> str:
    return f"{_counted(space.total_records, 'record')} in {_counted(space.total, 'task')}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
