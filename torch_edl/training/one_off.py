"""One-off tasks: what the master leases to a worker besides training, and how tasks are reported.

An evaluation and a prediction are of records; a summary is of the states that evaluations left; a
snapshot is of the model, where a worker holds it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from torch_edl.checkpoint import layout
from torch_edl.config import JobConfig
from torch_edl.config.training import EarlyStop
from torch_edl.data.batch import Update
from torch_edl.data.feeder import Feeder, FeedError, Updates
from torch_edl.data.mode import MODES
from torch_edl.data.task_reader import named
from torch_edl.data.tasks import ModelTask, RecordTask, TaskFailed
from torch_edl.engine.base import Engine
from torch_edl.errors import (
    ContractError,
    DismissedError,
    EdlError,
    MasterLostError,
    MinibatchError,
    NanLossError,
    ServersLostError,
    UsageError,
    UserCodeError,
    describe_error,
)
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.contract.user_traceback import user_traceback
from torch_edl.training.not_finite import WITHOUT, cause
from torch_edl.training.task_results import (
    TaskMetrics,
    TaskPredictions,
    Values,
    kept_columns,
    summarize,
)
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class Evaluated(Protocol):
    """A model file whose model is evaluated;
    see :class:`~torch_edl.training.user_model.UserModel`."""

    functions: UserFunctions
    config: JobConfig
    feeder: Feeder
    values: Values

    def predict(self, features: Any) -> Any: ...

    def evaluating(self) -> AbstractContextManager[None]: ...


def comes_again(error: BaseException) -> bool:
    """Whether the next try of a task would meet an error again; an exception of the user's code
    may not come again, but one of ours that was raised in it would."""
    if isinstance(error, FeedError | UserCodeError):
        return error.__cause__ is None or isinstance(error.__cause__, UsageError)
    return isinstance(error, UsageError | NanLossError)


class OneOffTasks:
    """Does the tasks of a model file that are not training."""

    def __init__(
        self,
        file: Evaluated,
        engine: Engine,
        leases: LeaseClient,
        session: MasterSession,
    ) -> None:
        self._file = file
        self._engine = engine
        self._leases = leases
        self._status = session.progress
        self._leaving = session.heartbeat.draining
        self._writing: threading.Thread | None = None
        self._at_work: Update | None = None  # of an evaluation or a prediction

    def do(self, task: RecordTask | ModelTask | TaskFailed) -> None:
        """Does a task and reports it, as failed if it could not be prepared or the user's code
        raises.

        Raises:
            ServersLostError: the task was given back.
            MasterLostError: there is no task, since the master does not answer.
        """
        if isinstance(task, TaskFailed):
            if task.lease is None:
                raise task.error
            self._fail(task.lease, task.error)
            return
        lease = task.lease
        self._status.phase = pb.TaskKind.Name(lease.kind).removeprefix("TASK_").lower()
        if lease.kind == pb.TASK_SNAPSHOT:
            self._snapshot(lease)
            return
        try:
            result = self._done(task)
        except MasterLostError:
            raise
        except ServersLostError:
            self._leases.release(lease)
            raise
        except (Exception, SystemExit) as error:
            self._fail(lease, error, self._where(error))
            return
        finally:
            self._at_work = None
        self._leases.complete(lease, result)

    def _where(self, error: BaseException) -> str:
        """What a person calls the records that were at work; empty: not known."""
        if self._at_work is None or isinstance(error, FeedError):
            return ""
        return self._at_work.where(error.sample if isinstance(error, MinibatchError) else None)

    def _fail(self, lease: HeldLease, error: BaseException, where: str = "") -> None:
        """Reports a task as failed, or gives it back if this worker was asked to leave."""
        if self._leaving.is_set():
            log.info("task %d of %s is given back: %s", lease.task_id, lease.shard, error)
            self._leases.release(lease)
        else:
            self.fail(lease, error, where=where)

    def fail(
        self,
        lease: HeldLease,
        error: BaseException,
        *,
        where: str = "",
        done: TaskResult | None = None,
    ) -> None:
        """Reports a task as failed.

        Args:
            where: what a person calls the records that were at work; empty: any of the task.
            done: what was trained before.

        Raises:
            DismissedError: the job has failed with that.
        """
        log.error("task %d of %s failed: %s", lease.task_id, lease.shard, error)
        text = str(error) if isinstance(error, EdlError) else describe_error(error)
        if lease.kind in MODES:
            text += f" ({where or named(range(lease.start, lease.end), lease.shard)})"
        traceback = user_traceback(error, self._file.functions.path)
        if self._leases.fail(lease, text, traceback, fatal=comes_again(error), done=done):
            raise DismissedError("the job has failed")

    def try_evaluation(self, lease: HeldLease, prepare: Callable[[HeldLease], Updates]) -> None:
        """Evaluates a minibatch, whose result counts for nothing, before the first step: what would
        fail after all epochs fails now.

        Raises:
            UserCodeError: the evaluation failed as often as a task may.
            ServersLostError: the model cannot be had.
        """
        for left in reversed(range(self._file.config.cluster.max_task_failures)):
            try:
                result = self._evaluate(RecordTask(lease, prepare(lease), 0))
                self._require_metric([state.name for state in result.metrics])
            except (ContractError, FeedError, UserCodeError) as error:
                if left and not comes_again(error):
                    continue
                cause = error.__cause__ or error
                text = f"{error} (records {lease.start} to {lease.end - 1} of {lease.shard}, "
                text += "in a trial of the evaluation before the first step)"
                raise UserCodeError(text) from cause
            return

    def _require_metric(self, known: Sequence[str]) -> None:
        early_stop = self._file.config.train.early_stop
        if early_stop and EarlyStop.of(early_stop).metric not in known:
            raise ContractError(
                f"--early-stop {early_stop}: no such metric; the evaluation has {', '.join(known)}"
            )

    def do_last(self) -> None:
        """Writes the model, if the job is to end and no other worker has it."""
        for lease in self._leases.snapshots():
            self.do(ModelTask(lease))
            self.close()

    def close(self) -> None:
        """Waits for the snapshot that is being written."""
        if self._writing is not None:
            self._writing.join()

    def _snapshot(self, lease: HeldLease) -> None:
        """Copies the model now; training continues while the copy is written."""
        self.close()
        write = self._engine.snapshot()

        def run() -> None:
            folder = Path(lease.directory)
            try:
                # A snapshot that failed for want of space must not take the space of this one.
                layout.remove_leftovers(folder.parent)
                self._leases.complete(lease, TaskResult(snapshot=write(folder)))
            except OSError as error:
                # That the job has failed is heard with the next task.
                with contextlib.suppress(DismissedError):
                    self.fail(lease, error)
            except MasterLostError as error:
                log.warning("the snapshot is of no use: %s", error)

        self._writing = threading.Thread(target=run, name="snapshot", daemon=True)
        self._writing.start()

    def _done(self, task: RecordTask | ModelTask) -> TaskResult:
        if task.lease.kind == pb.TASK_SUMMARIZE:
            made = self._file.functions.make_metrics()
            metrics = {name: metric.made for name, metric in made.items()}
            return TaskResult(values=summarize(metrics, task.lease.states, self._file.values))
        assert isinstance(task, RecordTask)
        return self._evaluate(task) if task.lease.kind == pb.TASK_EVALUATE else self._predict(task)

    def _evaluate(self, task: RecordTask) -> TaskResult:
        metrics = TaskMetrics.of(self._file.functions, self._file.values)
        damaged = 0
        with self._evaluating() as prepare:
            for update in self._updates(task):
                damaged += update.damaged
                for minibatch in update.minibatches:
                    batch = minibatch.batch
                    predictions = self._file.predict(prepare(batch.features))
                    try:
                        metrics.update(batch, predictions)
                    except ContractError:
                        raise
                    except (Exception, SystemExit) as error:
                        why, at = cause(batch, self._file.values.array)
                        why = f"; {why}; {WITHOUT}" if why else ""
                        raise UserCodeError(
                            f"a metric raised {describe_error(error)}{why}", at
                        ) from error
        records = task.lease.end - task.lease.start
        return TaskResult(records=records, metrics=metrics.states(), damaged=damaged)

    def _predict(self, task: RecordTask) -> TaskResult:
        process = self._file.functions.prediction_outputs_processor
        names, kept = self._file.config.data.kept, None
        if names:
            records = self._file.feeder.records(task.lease)
            kept = kept_columns(records, names, task.lease.shard)
        outputs = TaskPredictions(process, self._leases.worker_id, self._file.values, kept)
        with self._evaluating() as prepare:
            for update in self._updates(task):
                for minibatch in update.minibatches:
                    outputs.add(self._file.predict(prepare(minibatch.batch.features)))
        rows = outputs.write(self._file.config.checkpoint.parts, task.lease.task_id)
        records = task.lease.end - task.lease.start
        if rows != records and process is None:
            raise ContractError(
                f"the model made {rows} predictions for {records} records; "
                "feed and model must keep every record in prediction"
            )
        return TaskResult(records=records)

    def _updates(self, task: RecordTask) -> Iterator[Update]:
        for update in task.updates(0):
            if self._leaving.is_set():
                raise DismissedError("this worker was asked to leave")
            self._at_work = update
            yield update

    @contextmanager
    def _evaluating(self) -> Iterator[Any]:
        with self._engine.evaluating() as prepare, self._file.evaluating():
            yield prepare
