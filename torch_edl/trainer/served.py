"""A training loop of the user's own whose model is on parameter servers.

Before a batch the parameters are pulled, rows of embeddings when the model asks for them; after it
the gradients are pushed, with the records that they are of. There is no ring: each process has
tasks of its own, and goes on without waiting for the others.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from torch_edl.config import ENV_TOKEN
from torch_edl.data.leases import LeaseClient
from torch_edl.data.loader import Window
from torch_edl.data.order import Span
from torch_edl.errors import ServersLostError, UsageError
from torch_edl.nn.swap import swap_large
from torch_edl.strategy.meeting import DismissedError
from torch_edl.strategy.parameter_server import ParameterServerStrategy
from torch_edl.trainer.batches import Batches, open_batches
from torch_edl.trainer.link import Link
from torch_edl.trainer.metrics import Meter
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_BATCHES_PER_TASK = 32


class Served:
    """This process's copy of a model that is on servers.

    Args:
        scheduler: of learning rates; it follows the updates of the servers.
    """

    def __init__(
        self, link: Link, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any
    ) -> None:
        self.step = 0
        """Batches of this process that are in the model."""
        self._link = link
        self._leases = LeaseClient(link.master, link.worker_id)
        swap_parameters(model, optimizer, link.config.train.large_embedding)
        self._strategy = ParameterServerStrategy(
            None,
            model,
            optimizer,
            None if scheduler is None else _Driven(scheduler),
            config=link.config,
            token=os.environ.get(ENV_TOKEN, ""),
            progress=link.progress,
        )
        optimizer.register_step_pre_hook(self._before_step)
        self._open = False
        self._connected = False
        self._done = False

    def close(self) -> None:
        """Lets go of the servers."""
        self._strategy.close()

    def begin(self) -> None:
        """Pulls the model as it is now, to be evaluated."""
        while True:
            try:
                self._connect()
                self._strategy.begin()
                return
            except ServersLostError as error:
                self._lose(error)

    def batches(
        self, dataset: Any, data: dict[str, Any], options: dict[str, Any], meter: Meter
    ) -> Iterator[Any]:
        """The batches of this process's tasks, until all tasks are done.

        Raises:
            UsageError: a second loader, or one that asks for what servers do not do.
        """
        self._check(dataset, data)
        batches = open_batches(dataset, data, 0, options)
        assert isinstance(batches, Batches)
        self._report(batches)
        for lease in self._tasks():
            try:
                yield from self._train(lease, batches, meter)
            except ServersLostError as error:
                meter.settle(counted=False)
                self._leases.release([lease])
                self._lose(error)

    def _check(self, dataset: Any, data: dict[str, Any]) -> None:
        if self._done:
            raise UsageError(
                "a second loader: with parameter servers all epochs belong in one, "
                "job.loader(dataset, epochs=...)"
            )
        self._done = True
        if isinstance(dataset, IterableDataset):
            raise UsageError(
                "an IterableDataset cannot be cut into tasks, which parameter servers need; use a "
                "dataset with __getitem__, or --strategy allreduce"
            )
        for name, usual in (("accumulate", 1), ("global_batch_size", 0), ("drop_last", False)):
            if data[name] != usual:
                raise UsageError(
                    f"{name}={data[name]}: with parameter servers each batch is an update; "
                    "leave it out, or use --strategy allreduce"
                )

    def _report(self, batches: Batches) -> None:
        """Tells the master what there is to go through."""
        whole = batches.data
        self._link.report(
            pb.ReportModelRequest(
                worker_id=self._link.worker_id,
                data=pb.ScriptData(
                    records=whole.records,
                    epochs=whole.epochs,
                    batch_size=whole.batch_size,
                    records_per_task=_BATCHES_PER_TASK * whole.batch_size,
                ),
            )
        )

    def _tasks(self) -> Iterator[pb.LeaseMessage]:
        heartbeat = self._link.heartbeat
        while True:
            if heartbeat.lost.is_set() or heartbeat.draining.is_set():
                raise DismissedError("the job goes on without this worker, or is over")
            answer = self._leases.lease(want=1)
            if answer.next == pb.LeaseResponse.FINISHED:
                return
            if answer.next == pb.LeaseResponse.DRAIN:
                raise DismissedError("asked to leave")
            if answer.next == pb.LeaseResponse.CLUSTER_CHANGED:
                self._link.cluster = answer.cluster
                self._strategy.close()
                self._connected = False
            yield from answer.leases

    def _train(self, lease: pb.LeaseMessage, batches: Batches, meter: Meter) -> Iterator[Any]:
        self._connect()
        length = lease.end - lease.start
        offset = lease.offset
        if lease.retried:
            offset = max(offset, self._strategy.committed(lease))
        first = lease.epoch * batches.data.records + lease.start
        size = batches.data.batch_size
        spans = [(at, min(at + size, length)) for at in range(offset, length, size)]
        loader = batches.of([(first + start, first + end) for start, end in spans])
        for span, batch in zip(spans, loader, strict=True):
            yield from self._update(lease, span, batch, meter)
            if self._link.heartbeat.draining.is_set() and span != spans[-1]:
                self._leases.release([lease])
                return
        self._leases.report(
            pb.ReportTaskRequest(
                lease_id=lease.lease_id,
                outcome=pb.ReportTaskRequest.DONE,
                records=length - offset,
                steps=len(spans),
            )
        )

    def _update(
        self, lease: pb.LeaseMessage, span: Span, batch: Any, meter: Meter
    ) -> Iterator[Any]:
        records = span[1] - span[0]
        self._strategy.begin()
        meter.open(records)
        self._open = True
        yield batch
        self._open = False
        self._strategy.commit(Window(lease, *span, []), self._leases.retired_before)
        meter.settle(counted=True)
        self.step += 1
        progress = self._link.progress
        progress.phase = "training"
        progress.steps += 1
        progress.records += records
        loss = meter.last("loss")
        if loss is not None:
            progress.add_loss(loss)

    def _before_step(self, *_: Any) -> None:
        """The servers run the optimizer; here a step only says that the gradients are complete."""
        if self._open:
            self._strategy.collect()

    def _connect(self) -> None:
        if not self._connected:
            self._strategy.connect(self._link.cluster)
            self._leases.incarnation = self._link.cluster.incarnation
            self._connected = True

    def _lose(self, error: ServersLostError) -> None:
        log.warning("parameter servers lost: %s", error)
        self._strategy.close()
        self._connected = False
        time.sleep(_RETRY_S)


class _Driven:
    """A scheduler whose ``step`` the script calls in vain: the servers' updates drive it."""

    def __init__(self, scheduler: Any) -> None:
        self.step = scheduler.step
        self.state_dict = scheduler.state_dict
        self.load_state_dict = scheduler.load_state_dict
        scheduler.step = lambda *_, **__: None


def swap_parameters(model: nn.Module, optimizer: torch.optim.Optimizer, threshold: int) -> None:
    """Replaces large embeddings by tables on servers, in the optimizer too."""
    before = {path: module.weight for path, module in model.named_modules()
              if isinstance(module, nn.Embedding | nn.EmbeddingBag)}  # fmt: skip
    new = {id(before[path]): table.weight for path, table in swap_large(model, threshold).items()}
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]
