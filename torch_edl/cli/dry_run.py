"""``torch-edl run --dry-run``: runs one minibatch through the model file and prints the plan.

The module runs user code and scans the data, so it is imported for dry runs only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch_edl.cli.terminal import stdout, table
from torch_edl.config import JobConfig
from torch_edl.data.cuts import tasks_of
from torch_edl.data.feeder import FeedError
from torch_edl.data.sources import open_source, parts
from torch_edl.data.task_space import Shard
from torch_edl.engine.choose_strategy import choose
from torch_edl.errors import (
    ContractError,
    NanLossError,
    UsageError,
    UserCodeError,
    describe_error,
)
from torch_edl.events import counted
from torch_edl.interfaces import Batch
from torch_edl.master_client.leases import HeldLease
from torch_edl.training.contract.backends import backend_of, importing
from torch_edl.training.contract.functions import argument_orders
from torch_edl.training.contract.source_files import user_traceback
from torch_edl.training.task_results import TaskMetrics
from torch_edl.training.user_model import UserModel
from torch_edl.wire import master_pb2 as pb


def show(config: JobConfig, *, servers_named: bool) -> int:
    """Print the plan of a job without starting a process, and return the exit code.

    Args:
        servers_named: True if the user gave a number of servers.

    Raises:
        ContractError: the model file does not fulfil the contract.
        UsageError: the data cannot be read, or the strategy cannot train the model.
    """
    with _user_errors(config):
        backend = backend_of(config.model_file)
        with importing(backend):
            backend.warm_up()
        functions = backend.load_contract(config.model_file, config.model_args)
        file = backend.make_model(functions, config)
        model = file.report()
        orders = [("framework", backend.title), *argument_orders(functions)]
    rows = [*_how(config, model, servers_named=servers_named), *_what(config, file)]
    with _user_errors(config):
        loss = _try_batch(file, config)
    plan = table("plan", "")
    plan.show_header = False
    plan.columns[1].style = "bold"
    for label, value in [rows[0], *orders, ("first batch", loss), *rows[1:]]:
        plan.add_row(label, value)
    stdout().print(plan)
    return 0


def _how(
    config: JobConfig, model: pb.ReportModelRequest, *, servers_named: bool
) -> list[tuple[str, str]]:
    """Return labels and values that describe the model, the strategy and the processes."""
    cluster = config.cluster
    choice = choose(
        config.train.strategy,
        model.embeddings,
        max_workers=cluster.max_workers,
        large_embedding=config.train.large_embedding,
        optimizer_error=model.optimizer_error,
    )
    least, most = cluster.min_workers, cluster.max_workers
    rows = [("model", f"{model.dense_elements:,} dense parameters, {model.optimizer}")]
    for e in model.embeddings:
        count = f"{e.num_embeddings:,}" if e.num_embeddings else "any id"
        rows.append(("embedding", f"{e.name}: {count} x {e.dim}"))
    rows.append(("strategy", f"{choice.name}: {choice.reason}"))
    rows.append(("workers", str(most) if least == most else f"{least} to {most}"))
    if choice.name == "ps":
        rows.append(("servers", str(cluster.servers)))
    elif servers_named:
        rows.append(
            ("servers", f"none; --ps {cluster.servers} has an effect with --strategy ps only")
        )
    return rows


def _what(config: JobConfig, file: UserModel) -> list[tuple[str, str]]:
    """Return labels and values that describe the data, the checkpoints and the output."""
    data, keep = config.data, config.checkpoint
    rows = [("data", "from data_source of the model file")]
    if file.functions.data_source is None:
        found, tasks = _scan(config, data.train)
        rows = [
            ("data", found),
            ("epochs", f"{data.epochs:,} of {tasks:,} tasks"),
            ("tasks", f"up to {config.records_per_task:,} records each"),
            ("minibatches", f"{data.batch_size:,} records, pushed by {config.train.local_steps}"),
        ]
    if data.eval:
        when = f"every {config.train.eval_every:,} steps and " if config.train.eval_every else ""
        rows.append(("evaluation", f"{_scan(config, data.eval)[0]}, {when}at the end"))
    if keep.load:
        rows.append(("starts from", keep.load))
    if keep.dir:
        each = f"every {keep.every:,} steps" if keep.every else "at the end"
        rows.append(("checkpoints", f"{keep.dir}, {each}"))
    return [*rows, ("output", keep.output or "none; --output DIR keeps the model")]


def _scan(config: JobConfig, files: Sequence[str]) -> tuple[str, int]:
    """Return the size of the data as text, and the number of tasks per epoch."""
    data = config.data
    opened = (
        open_source(f, format=data.format, skip_damaged=data.skip_damaged) for f in parts(files)
    )
    counts, damages = zip(*((source.count, source.damaged) for source in opened), strict=True)
    records, damaged = sum(counts), sum(damages)
    if not records:
        raise UsageError(f"--data {files[0]}: no records in it; name files that hold some")
    text = f"{counted(records, 'record')} in {counted(len(files), 'file')}"
    tasks = sum(tasks_of(count, config.records_per_task) for count in counts)
    return text + (f", {damaged:,} damaged skipped" if damaged else ""), tasks


@contextlib.contextmanager
def _user_errors(config: JobConfig) -> Iterator[None]:
    """Turn an exception of the model file into a ContractError with the user's traceback."""
    try:
        yield
    except (ContractError, FeedError, UserCodeError, NanLossError) as error:
        if error.__cause__ is None:
            raise ContractError(str(error)) from error
        trace = user_traceback(error, config.model_file)
        raise ContractError(f"{error}\n{trace.rstrip()}") from error


def _try_batch(file: UserModel, config: JobConfig) -> str:
    """Run one minibatch through feed, model, loss and backward, and one through the metrics; return
    the number of records and the loss as text."""
    names = [shard.name for shard in file.shards()] or config.data.train
    batch = _first_batch(file, config, names, pb.TASK_TRAIN)
    if batch is None:
        return "feed skipped all of its records"
    loss = file.try_batch(batch)
    _try_metrics(file, _first_batch(file, config, config.data.eval or names, pb.TASK_EVALUATE))
    if loss is None:
        return "the loss is not finite"
    return f"{batch.size:,} records, loss {loss:.4g}"


def _try_metrics(file: UserModel, batch: Batch | None) -> None:
    if batch is None:
        return
    metrics = TaskMetrics(file.functions.loss, file.functions.make_metrics(), file.values)
    with file.evaluating():
        predictions = file.predict(batch.features)
        try:
            metrics.update(batch, predictions)
        except (Exception, SystemExit) as error:
            raise UserCodeError(f"a metric raised {describe_error(error)}") from error


def _first_batch(
    file: UserModel, config: JobConfig, names: Sequence[str], kind: pb.TaskKind
) -> Batch | None:
    """Return the first minibatch of the data; None if feed skipped all records."""
    shards = (Shard.of(file.feeder.reader.source(name)) for name in names)
    shard = next((shard for shard in shards if shard.records), None)
    if shard is None:
        raise UsageError("no data: name files with --data, or give the model file a data_source")
    lease = HeldLease(
        kind=kind,
        shard=shard.name,
        end=min(shard.records, config.data.batch_size),
        shard_records=shard.records,
        shard_size=shard.size,
        shard_mtime_ns=shard.mtime_ns,
    )
    columns = file.functions.preprocessing
    # The statistics of one minibatch are enough to run feed.
    if columns is not None and not columns.is_fitted:
        columns.fit([file.feeder.reader.source(shard.name).read(0, lease.end)])
    update = next(file.feeder.prepare(lease)(0))
    return next((minibatch.batch for minibatch in update.minibatches), None)
