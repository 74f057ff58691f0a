"""``torch-edl run --dry-run``: runs one minibatch through the functions of the model file, scans
the data, and prints what the job would do. Only this verb and export import torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_edl.cli.terminal import stdout
from torch_edl.config import JobConfig
from torch_edl.errors import ContractError, NanLossError, UsageError, UserCodeError
from torch_edl.master_client.leases import Lease

if TYPE_CHECKING:
    from torch_edl.trainer.model_file import ModelFile
    from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The size of the data."""

    files: int
    records: int
    tasks: int
    """Per epoch."""
    damaged: int


def show(config: JobConfig, *, servers_named: bool) -> int:
    """Prints the plan of a job; no process is started.

    Args:
        servers_named: the user gave a number of servers; only the strategy ``ps`` has servers.

    Returns:
        0: the job can run.

    Raises:
        ContractError: the model file does not fulfil the contract.
        UsageError: the data cannot be read, or the strategy cannot train the model.
    """
    from rich import box
    from rich.table import Table

    with _user_errors(config):
        file, model, orders = _open(config)
    train = scan(config, config.data.train)
    evaluation = scan(config, config.data.eval)
    table = Table("plan", box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(style="bold")
    rows = plan(config, model, train, evaluation, servers_named=servers_named)
    with _user_errors(config):
        loss = _try_batch(file, config)
    for label, value in [rows[0], *orders, ("first batch", loss), *rows[1:]]:
        table.add_row(label, value)
    stdout().print(table)
    return 0


def scan(config: JobConfig, files: Sequence[str]) -> Scan:
    """Counts records and tasks as the master does; data of a custom source is not counted.

    Raises:
        DataError: a file cannot be read.
        UsageError: there are no records.
    """
    from torch_edl.data.sources import open_source

    counts, damaged = [], 0
    for path in files:
        source = open_source(path, format=config.data.format, skip_damaged=config.data.skip_damaged)
        counts.append(source.count)
        damaged += source.damaged
    if files and not sum(counts):
        raise UsageError(f"--data {files[0]}: no records in it; name files that hold some")
    tasks = sum(math.ceil(count / config.records_per_task) for count in counts)
    return Scan(files=len(files), records=sum(counts), tasks=tasks, damaged=damaged)


def plan(
    config: JobConfig,
    model: pb.ReportModelRequest,
    train: Scan,
    evaluation: Scan,
    *,
    servers_named: bool,
) -> list[tuple[str, str]]:
    """The rows of the plan: label, value.

    Raises:
        UsageError: the strategy that the user named cannot train the model.
    """
    from torch_edl.engine.choose import EmbeddingSize, choose

    sizes = [
        EmbeddingSize(name=e.name, num_embeddings=e.num_embeddings, dim=e.dim, dynamic=e.dynamic)
        for e in model.embeddings
    ]
    cluster, data, keep = config.cluster, config.data, config.checkpoint
    choice = choose(
        config.train.strategy,
        sizes,
        max_workers=cluster.max_workers,
        large_embedding=config.train.large_embedding,
        optimizer_error=model.optimizer_error,
        trains=config.trains,
    )
    rows = [
        ("model", f"{model.dense_elements:,} dense parameters, {model.optimizer}"),
        *(("embedding", _describe(e)) for e in sizes),
        ("strategy", f"{choice.name}: {choice.reason}"),
        ("workers", _range(cluster.min_workers, cluster.max_workers)),
    ]
    if choice.name == "ps":
        rows.append(("servers", str(cluster.servers)))
    elif servers_named:
        rows.append(
            ("servers", f"none; --ps {cluster.servers} has an effect with --strategy ps only")
        )
    if train.files:
        rows += [
            ("data", _scanned(train)),
            ("epochs", f"{data.epochs:,} of {train.tasks:,} tasks"),
            ("tasks", f"up to {config.records_per_task:,} records each"),
            ("minibatches", f"{data.batch_size:,} records, pushed by {config.train.local_steps}"),
        ]
    else:
        rows.append(("data", "from data_source of the model file"))
    if evaluation.files:
        when = f"every {config.train.eval_every:,} steps and " if config.train.eval_every else ""
        rows.append(("evaluation", f"{_scanned(evaluation)}, {when}at the end"))
    if keep.load:
        rows.append(("starts from", keep.load))
    if keep.dir:
        each = f"every {keep.every:,} steps" if keep.every else "at the end"
        rows.append(("checkpoints", f"{keep.dir}, {each}"))
    rows.append(("output", keep.output or "none; --output DIR keeps the model"))
    return rows


@contextlib.contextmanager
def _user_errors(config: JobConfig) -> Iterator[None]:
    """An exception of the model file ends the dry run with its traceback."""
    from torch_edl.contract import user_traceback
    from torch_edl.data.feeder import FeedError

    try:
        yield
    except (ContractError, FeedError, UserCodeError, NanLossError) as error:
        if error.__cause__ is None:
            raise ContractError(str(error)) from error
        trace = user_traceback(error, config.model_file)
        raise ContractError(f"{error}\n{trace.rstrip()}") from error


def _open(config: JobConfig) -> tuple[ModelFile, pb.ReportModelRequest, list[tuple[str, str]]]:
    """The model and the data of the model file, and how its loss and metrics are called."""
    from torch_edl.contract import argument_orders, load_contract, report_model
    from torch_edl.trainer.model_file import ModelFile

    contract = load_contract(config.model_file, config.model_args)
    file = ModelFile(contract, config)
    report = report_model(file.model, file.optimizer)
    return file, report, argument_orders(contract)


def _try_batch(file: ModelFile, config: JobConfig) -> str:
    """Runs the first minibatch through feed, model, loss and backward; the loss in words."""
    from torch_edl.data.task_space import Shard
    from torch_edl.nn.model_tables import bind_tables
    from torch_edl.trainer.step import Step
    from torch_edl.wire import master_pb2 as pb

    names = [shard.name for shard in file.shards()] or config.data.train
    shards = (Shard.of(file.feeder.reader.source(name)) for name in names)
    shard = next((shard for shard in shards if shard.records), None)
    if shard is None:
        raise UsageError("no data: name files with --data, or give the model file a data_source")
    lease = Lease(
        kind=pb.TASK_TRAIN,
        shard=shard.name,
        end=min(shard.records, config.data.batch_size),
        shard_records=shard.records,
        shard_size=shard.size,
        shard_mtime_ns=shard.mtime_ns,
    )
    update = next(file.feeder.prepare(lease)(0))
    batch = next((minibatch.batch for minibatch in update.minibatches), None)
    if batch is None:
        return f"feed skipped all of its {lease.end:,} records"
    bind_tables(file.model)
    step = Step(file.contract, file.model, on_nan=config.train.on_nan, log_layers="")
    loss = step.loss(batch)
    if loss is None:
        return "the loss is not finite"
    step.backward(loss, batch)
    return f"{batch.size:,} records, loss {step.last_loss:.4g}"


def _describe(size: object) -> str:
    from torch_edl.engine.choose import EmbeddingSize

    assert isinstance(size, EmbeddingSize)
    rows = f"{size.num_embeddings:,}" if size.num_embeddings else "any id"
    return f"{size.name}: {rows} x {size.dim}"


def _scanned(found: Scan) -> str:
    text = f"{found.records:,} records in {found.files:,} file{'s' * (found.files != 1)}"
    return text + (f", {found.damaged:,} damaged skipped" if found.damaged else "")


def _range(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"
