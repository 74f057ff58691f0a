"""Preparation of a job: the strategy, chosen from the model, and the tasks, cut from the data.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from master.state.actions import DataScanned, Failure, KeepPlan, PlanKept, Saved, StreamGrown
from master.state.work.script_data import check_same, with_data
from master.state.work.task_scheduler import TaskScheduler
from torch_edl.config import JobConfig
from torch_edl.data.resuming import (
    check_data,
    check_extent,
    check_options,
    epochs_of,
    identity,
    touched,
)
from torch_edl.data.stream_space import AnySpace, StreamSpace
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.engine.choose_strategy import choose
from torch_edl.errors import DataError, UsageError
from torch_edl.events import (
    DataTouched,
    DeviceUsed,
    Event,
    ModelLoaded,
    NothingToResume,
    RecordsDamaged,
    RecordsRemoved,
    StrategyChosen,
    TasksMade,
    TrainingResumed,
)
from torch_edl.wire import master_pb2 as pb

_DATA = {"train": "train", "evaluate": "eval", "predict": "predict"}


@dataclass(frozen=True)
class Decided:
    """The strategy is known."""

    strategy: str
    reason: str


PreparationEvent = DataScanned | Decided | Event


class Preparation:
    """Chooses the strategy, and makes the tasks once the data has been counted.

    The returned iterators of events may raise UsageError: the user's mistake makes the job fail.

    Args:
        resumed: the checkpoint to resume from.
    """

    def __init__(self, config: JobConfig, tasks: TaskScheduler, *, resumed: Saved | None) -> None:
        self._use(config)
        self._given = config
        self._tasks = tasks
        self._resumed = resumed
        self._model: pb.ReportModelRequest | None = None
        self._data: pb.ScriptData | None = None
        self._scanned: DataScanned | None = None
        self._state: dict[str, Any] | None = None  # of what was reported so far
        self._plan_told = (0, 0)  # life and end of a stream's plan, as last sent to the store

    def _use(self, config: JobConfig) -> None:
        self.config = config
        """Configuration of the job; for a script on servers, it includes the data of its loader."""
        self.config_json = config.to_json()

    def begin_training(self, resumed: Saved | None) -> None:
        """Reset for another training of a script, which reports a model and data of its own.

        Args:
            resumed: the checkpoint to resume from; None: begin with a new model.
        """
        self._use(self._given)
        self._resumed = resumed
        self._model = self._data = self._state = None

    @property
    def needs_scan(self) -> bool:
        """True if the records of the data have to be counted."""
        return self._scanned is None and self.config.kind != "script"

    @property
    def complete(self) -> bool:
        """True if workers may begin; a script reports its data later."""
        return self._model is not None and (self._tasks.ready or self.config.kind == "script")

    def start(self) -> Iterator[PreparationEvent]:
        """Decide a strategy that does not depend on the model, once the master listens."""
        wanted = self.config.train.strategy
        if wanted == "ps" or (wanted == "allreduce" and self.config.kind == "script"):
            yield Decided(wanted, "a training script" if wanted == "allreduce" else "")
        if self._resumed is not None:
            yield TrainingResumed(checkpoint=str(self._resumed.path))
        elif self.config.checkpoint.resume:
            yield NothingToResume()
        elif (keep := self.config.checkpoint).load and self.config.trains:
            yield ModelLoaded(source=keep.load, with_optimizer=keep.load_optimizer)

    def scanned(self, event: DataScanned) -> Iterator[PreparationEvent]:
        """Record the counted data sources, and make the tasks if the model is known."""
        self._scanned, self._state = event, None
        if event.damaged:
            yield RecordsDamaged(records=event.damaged)
        yield from self._make_tasks()

    def model_reported(
        self, model: pb.ReportModelRequest, workers: int, *, strategy: str = ""
    ) -> Iterator[PreparationEvent]:
        """Record the model that a worker reports; the first report decides the strategy for the
        wanted number of ``workers``.

        Args:
            strategy: strategy of an earlier training of the script; empty if there is none.
        """
        if self._model is not None:
            return
        self._model, self._state = model, None
        config = self.config
        choice = choose(
            strategy or config.train.strategy,
            model.embeddings,
            max_workers=workers,
            large_embedding=config.train.large_embedding,
            # Nothing is optimized in an evaluation or a prediction.
            optimizer_error=model.optimizer_error if config.trains else "",
            trains=config.trains,
            script=config.kind == "script",
        )
        reason = choice.reason
        if self._resumed is not None:
            reason = f"continues a checkpoint of the strategy {self._resumed.manifest.strategy}"
        yield Decided(choice.name, reason)
        yield StrategyChosen(strategy=choice.name, reason=reason)
        if model.device:
            yield DeviceUsed(device=model.device)
        yield from self._make_tasks()

    def data_reported(self, data: pb.ScriptData) -> Iterable[PreparationEvent]:
        """Record the data that a worker of a script on servers reports; the first report makes the
        tasks.

        Raises:
            UsageError: no model was reported, or the data differ from those of another worker.
        """
        if self._model is None:
            raise UsageError("the model is to be reported before its data")
        if self._data is not None:
            check_same(self._data, data)
            return ()
        return self._make_script_tasks(with_data(self.config, data), data)

    def _make_tasks(self) -> Iterator[PreparationEvent]:
        """Make the tasks of a model file, once the model and the data are known."""
        scanned, model, config = self._scanned, self._model, self.config
        if scanned is None or model is None or self._tasks.ready:
            return
        if model.custom_source:
            shards = [
                Shard(s.name, s.records, s.size, s.mtime_ns, s.fingerprint) for s in model.shards
            ]
        elif scanned.error:
            raise UsageError(scanned.error)
        else:
            shards = list(scanned.shards.get(_DATA[config.kind], ()))
        if config.data.streams:
            if model.custom_source:
                raise UsageError(
                    "--epochs stream: the model file has a data_source, which has an end; leave "
                    "one of them out"
                )
            shards = [Shard(name, 0) for name in config.data.train]
        if not shards:
            raise UsageError(
                "no data: name files with --data, or give the model file a data_source"
            )
        if not config.data.streams and not sum(s.records for s in shards):
            names = ", ".join(s.name for s in shards[:3])
            raise UsageError(f"{names}: no records in there; name data that has some")
        main: AnySpace | None = None
        evaluation: TaskSpace | None = None
        if config.kind == "evaluate":
            evaluation = self._in_order(shards)
        elif config.kind == "predict":
            main = self._in_order(shards)
        else:
            streams = config.data.streams
            main = (
                StreamSpace.for_training(config)
                if streams
                else TaskSpace.for_training(shards, config)
            )
            if scanned.shards.get("eval"):
                evaluation = self._in_order(scanned.shards["eval"])
        if evaluation is not None and not evaluation.total:
            raise UsageError("--eval-data: no records in there; name data that has some")
        space = self._begin(main, evaluation, shards, identity(config, shards))
        is_stream = config.data.streams
        yield TasksMade(
            records=space.total_records,
            tasks=space.total,
            files=0 if is_stream else len(shards),
            streams=len(shards) if is_stream else 0,
        )
        if self._resumed is not None:
            yield from _touched(self._resumed.manifest.data, identity(config, shards))

    def _make_script_tasks(
        self, config: JobConfig, data: pb.ScriptData
    ) -> Iterator[PreparationEvent]:
        """Make the tasks of a script on servers: ranges of positions in an epoch. The worker maps
        positions to records, and shuffles."""
        self._data, self._state = data, None
        self._use(config)
        shards = [Shard("dataset", data.records)]
        space = self._in_order(shards, epochs=config.data.epochs)
        if data.open and self._resumed is not None:
            space.extend(max(space.epochs, epochs_of(self._resumed.manifest, space)))
        self._begin(space, None, shards, identity(config, shards, data.files))
        yield TasksMade(records=space.total_records, tasks=space.total)

    # ---- streams: tasks are cut as records arrive, stored, then leased ----

    def _stream(self) -> StreamSpace | None:
        space = self._tasks.main.space if self._tasks.main is not None else None
        return space if isinstance(space, StreamSpace) else None

    def stream_grown(
        self, event: StreamGrown, *, saving: bool
    ) -> Sequence[RecordsRemoved | Failure]:
        """Cut tasks from the new records of a stream; ignored before the first tasks are made.

        Args:
            saving: a checkpoint is being taken, which may need the tasks that are done.
        """
        main, space = self._tasks.main, self._stream()
        if main is None or space is None:
            return []
        if not saving:
            space.forget(main.retired_before)
        try:
            return space.grow(event.offsets, done=main.retired_before, idle=not main.todo)
        except DataError as error:
            return [Failure(str(error), usage=True)]

    def plan_kept(self, event: PlanKept) -> None:
        """Allow the leases of tasks that the store has."""
        if (space := self._stream()) is not None:
            space.kept(event.life, event.end)

    def take_actions(self) -> list[KeepPlan]:
        """Return the action that stores new tasks of a stream; empty if all are stored or being
        stored."""
        space = self._stream()
        if space is None or space.plan.end == space.total:
            return []
        told, self._plan_told = self._plan_told, (space.life, space.plan.end)
        return [KeepPlan(*self._plan_told)] if self._plan_told != told else []

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """Return the same object until the state changes, since it may name many files."""
        if self._state is None:
            model, data, scanned = self._model, self._data, self._scanned
            self._state = {
                "model": None if model is None else MessageToDict(model),
                "data": None if data is None else MessageToDict(data),
                "scanned": None if scanned is None else asdict(scanned),
            }
        return self._state

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """Restore what :meth:`to_state` returned, and make the same tasks."""
        if state["model"] is not None:
            self._model = ParseDict(state["model"], pb.ReportModelRequest())
        if state["scanned"] is not None:
            self._scanned = DataScanned.of(state["scanned"])
        made = self._make_tasks()
        if state["data"] is not None:
            data = ParseDict(state["data"], pb.ScriptData())
            made = self._make_script_tasks(with_data(self.config, data), data)
        for _ in made:
            pass  # the log has these events already

    def _begin(
        self,
        main: AnySpace | None,
        evaluation: TaskSpace | None,
        shards: Sequence[Shard],
        identity: Mapping[str, Any],
    ) -> AnySpace:
        if self._resumed is not None:
            path, manifest = self._resumed.path, self._resumed.manifest
            if self.config.kind == "train":
                check_options(self.config, path, manifest.data)
            check_data(path, manifest.data, identity)
            if isinstance(main, TaskSpace) and self.config.trains:
                check_extent(self.config, path, manifest, main)
        self._tasks.begin(
            main,
            evaluation,
            shards=shards,
            identity=identity,
            resumed=self._resumed,
            preprocessing=self._model.preprocessing if self._model is not None else "",
        )
        space = main or evaluation
        assert space is not None
        return space

    def _in_order(self, shards: Sequence[Shard], *, epochs: int = 1) -> TaskSpace:
        """Return a task space in the order of the data, without a shuffle."""
        config = self.config
        return TaskSpace(
            shards, config.records_per_task, epochs=epochs, batch_size=config.data.batch_size
        )


def _touched(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[DataTouched]:
    """Yield a warning if files were written since the checkpoint and still look the same."""
    if names := touched(then, now):
        yield DataTouched(first=names[0], files=len(names))
