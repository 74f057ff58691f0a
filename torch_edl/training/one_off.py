"""One-off tasks, which the master leases to a worker besides training, and their reports.

Evaluations and predictions process records. A summary computes metrics from the states of earlier
evaluations. A snapshot writes a model that a worker holds. Fitting collects the statistics of the
preprocessing, before training.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch_edl.checkpoint import layout
from torch_edl.config.training import EarlyStop, Objective
from torch_edl.data.batch import MODES
from torch_edl.data.feeder import FeedError, Updates
from torch_edl.data.task_reader import named
from torch_edl.data.tasks import ModelTask, RecordTask, TaskFailed
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
from torch_edl.interfaces import Batch, Engine, Update
from torch_edl.interfaces.preprocessing import Fittable
from torch_edl.master_client.leases import HeldLease, LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.training.contract.source_files import user_line, user_traceback
from torch_edl.training.diagnostics import WITHOUT, cause
from torch_edl.training.task_results import (
    TaskMetrics,
    TaskPredictions,
    kept_columns,
    summarize,
)
from torch_edl.training.user_model import UserModel
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

MOST_UNTRIED = 3  # records that an error names before the first update


def comes_again(error: BaseException) -> bool:
    """Return True if another attempt on the task would fail with the same error. An exception of
    user code may be temporary; a UsageError or a ContractError is not."""
    if isinstance(error, FeedError | UserCodeError):
        return error.__cause__ is None or isinstance(error.__cause__, UsageError)
    return isinstance(error, UsageError | NanLossError)


def is_untried(error: BaseException, steps: int) -> bool:
    """Return True if the user's code raised an error before it computed an update in this process:
    a mistake, not a bad record. Connections of user code may fail at any time.

    Args:
        steps: updates that this process has computed.
    """
    connects = isinstance(error.__cause__, ConnectionError | TimeoutError)
    return not steps and isinstance(error, FeedError | UserCodeError | UsageError) and not connects


def failed_records(update: Update | None, error: BaseException, most: int = 0) -> str:
    """Return the names of the records of a failed update for messages, of at most ``most`` records
    unless 0; empty if they are unknown, or if the error names them."""
    if update is None or isinstance(error, FeedError):
        return ""
    return update.where(error.sample if isinstance(error, MinibatchError) else None, most=most)


def fit(columns: Fittable, read: Callable[[HeldLease], Any], master: MasterSession) -> None:
    """Lease fitting tasks and report their statistics, until no task is left or this worker
    leaves.

    Args:
        columns: the preprocessing to fit.
        read: returns the records of a task.

    Raises:
        UsageError: the records do not match the columns.
        UserCodeError: user code that parses records raised.
        MasterLostError: the master does not answer.
    """
    master.progress.phase = "fitting"
    leases = LeaseClient(master.master, master.worker_id)
    heartbeat = master.heartbeat
    while not heartbeat.lost.is_set():
        answer = leases.request(fit=True)
        if answer.next != pb.LeaseResponse.LEASED or not answer.leases:
            break
        for message in answer.leases:
            lease = HeldLease.from_proto(message)
            if heartbeat.draining.is_set():
                leases.release(lease)
                continue
            rows = range(lease.start, lease.end)
            with leases.step(lease, 0, len(rows), named(rows, lease.shard)):
                result = _observed(columns, read, lease)
            leases.complete(lease, result)
    master.progress.phase = "waiting"


def _observed(columns: Fittable, read: Callable[[HeldLease], Any], lease: HeldLease) -> TaskResult:
    records = read(lease)
    statistics = columns.statistics()
    try:
        statistics.observe(records)
    except EdlError:
        raise
    except Exception as error:
        raise UserCodeError(f"the preprocessing raised {describe_error(error)}") from error
    return TaskResult(records=lease.end - lease.start, statistics=statistics.to_bytes())


class OneOffTasks:
    """Executes the tasks of a model file other than training, and reports them."""

    def __init__(
        self,
        file: UserModel,
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
        self._at_work: Update | None = None  # current update of an evaluation or a prediction

    def do(self, task: RecordTask | ModelTask | TaskFailed) -> None:
        """Execute a task and report its result. A task is reported as failed if its preparation
        failed or user code raised.

        Raises:
            ServersLostError: the servers were lost; the task was returned to the master.
            MasterLostError: the master does not answer.
            DismissedError: the job has failed because of this task.
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
        except BaseException as error:
            self._fail(lease, error, failed_records(self._at_work, error, self.most_named))
            return
        finally:
            self._at_work = None
        self._leases.complete(lease, result)

    def _fail(self, lease: HeldLease, error: BaseException, where: str = "") -> None:
        """Report a task as failed, or return it to the master if this worker was asked to leave."""
        if self._leaving.is_set():
            log.info("task %d of %s is given back: %s", lease.task_id, lease.shard, error)
            self._leases.release(lease)
        else:
            self.fail(lease, error, where=where)

    @property
    def most_named(self) -> int:
        """Maximum number of records in a message; 0: no limit. Before the first update, the cause
        is probably the user's code, and not a record."""
        return 0 if self._status.steps else MOST_UNTRIED

    def fail(
        self,
        lease: HeldLease,
        error: BaseException,
        *,
        where: str = "",
        done: TaskResult | None = None,
    ) -> None:
        """Report a task as failed.

        Args:
            where: names of the failed records for messages; empty: all records of the task.
            done: result of the records that were trained before; None: none.

        Raises:
            DismissedError: the job has failed because of this task.
        """
        log.error("task %d of %s failed: %s", lease.task_id, lease.shard, error)
        text = str(error) if isinstance(error, EdlError) else describe_error(error)
        if lease.kind in MODES:
            text += f" ({where or named(range(lease.start, lease.end), lease.shard)})"
        path = self._file.functions.path
        text += user_line(error, path)
        untried = is_untried(error, self._status.steps)
        if self._leases.fail(
            lease, text, user_traceback(error, path), fatal=comes_again(error), untried=untried,
            done=done,
        ):  # fmt: skip
            raise DismissedError("the job has failed")

    def try_evaluation(self, lease: HeldLease, prepare: Callable[[HeldLease], Updates]) -> None:
        """Evaluate a few records before the first step and discard the result, so that an
        evaluation that cannot work fails before training.

        Raises:
            UserCodeError: the evaluation failed as often as a task may fail, or with an error that
                would occur again.
            ServersLostError: the servers are unreachable.
        """
        for left in reversed(range(self._file.config.cluster.max_task_failures)):
            try:
                result = self._evaluate(RecordTask(lease, prepare(lease)))
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
        train = self._file.config.train
        wanted = {}
        if train.early_stop:
            wanted[f"--early-stop {train.early_stop}"] = EarlyStop.of(train.early_stop).objective
        if train.keep_best:
            wanted[f"--keep-best {train.keep_best}"] = Objective.of(train.keep_best)
        for option, objective in wanted.items():
            if objective.metric not in known:
                raise ContractError(
                    f"{option}: no such metric; the evaluation has {', '.join(known)}"
                )

    def do_last(self) -> None:
        """Lease and execute the last snapshots: the model is written if the job ends and no other
        worker has the model."""
        for lease in self._leases.snapshots():
            self.do(ModelTask(lease))
            self.close()

    def close(self) -> None:
        """Wait until the snapshot in progress is written."""
        if self._writing is not None:
            self._writing.join()

    def _snapshot(self, lease: HeldLease) -> None:
        """Copy the model, and write the copy in another thread while training continues."""
        self.close()
        write = self._engine.snapshot()

        def run() -> None:
            folder = Path(lease.directory)
            try:
                # A snapshot that failed on a full disk must not occupy the space of this snapshot.
                layout.remove_leftovers(folder.parent)
                self._leases.complete(lease, TaskResult(snapshot=write(folder)))
            except OSError as error:
                # The failure of the job is received with the next task.
                with contextlib.suppress(DismissedError):
                    self.fail(lease, error)
            except MasterLostError as error:
                log.warning("the snapshot is of no use: %s", error)

        self._writing = threading.Thread(target=run, name="snapshot", daemon=True)
        self._writing.start()

    def _done(self, task: RecordTask | ModelTask) -> TaskResult:
        if task.lease.kind == pb.TASK_SUMMARIZE:
            metrics = self._file.functions.make_metrics()
            return TaskResult(values=summarize(metrics, task.lease.states, self._file.values))
        assert isinstance(task, RecordTask)
        return self._evaluate(task) if task.lease.kind == pb.TASK_EVALUATE else self._predict(task)

    def _evaluate(self, task: RecordTask) -> TaskResult:
        functions, values = self._file.functions, self._file.values
        metrics = TaskMetrics(functions.loss, functions.make_metrics(), values)
        damaged = 0
        with self._evaluating() as prepare:
            for update in self._updates(task):
                damaged += update.damaged
                for minibatch in update.minibatches:
                    with update.step(minibatch):
                        predictions = self._file.predict(prepare(minibatch.batch.features))
                        self._measure(metrics, minibatch.batch, predictions)
        records = task.lease.end - task.lease.start
        return TaskResult(records=records, metrics=metrics.states(), damaged=damaged)

    def _measure(self, metrics: TaskMetrics, batch: Batch, predictions: Any) -> None:
        try:
            with self._apart():
                metrics.update(batch, predictions)
        except ContractError:
            raise
        except (Exception, SystemExit) as error:
            why, at = cause(batch, self._file.values.array)
            why = f"; {why}; {WITHOUT}" if why else ""
            raise UserCodeError(f"a metric raised {describe_error(error)}{why}", at) from error

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
                    with update.step(minibatch):
                        predictions = self._file.predict(prepare(minibatch.batch.features))
                        with self._apart():
                            outputs.add(predictions)
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

    def _apart(self) -> AbstractContextManager[Any]:
        return self._file.feeder.generators.apart()

    @contextmanager
    def _evaluating(self) -> Iterator[Any]:
        with self._engine.evaluating() as prepare, self._file.evaluating():
            yield prepare
