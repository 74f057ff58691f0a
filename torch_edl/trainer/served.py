"""A training loop of the user's own whose model is on parameter servers.

Before a batch the parameters are pulled, rows of embeddings when the model asks for them; after it
the gradients are pushed, with the records that they are of. There is no ring: each process has
tasks of its own, and goes on without waiting for the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import IterableDataset

from torch_edl.data.batches import Batches, open_batches
from torch_edl.data.loader import Window
from torch_edl.data.order import Span
from torch_edl.engine.ring.reducer import Reducer
from torch_edl.engine.servers.own_loop import OwnLoop
from torch_edl.environment import ENV_TOKEN
from torch_edl.errors import DismissedError, MasterLostError, ServersLostError, UsageError
from torch_edl.master_client.leases import LeaseClient, TaskResult
from torch_edl.master_client.session import MasterSession
from torch_edl.nn.model_tables import swap_large
from torch_edl.trainer.metrics import Meter
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S = 0.2
_BATCHES_PER_TASK = 32


class Served:
    """This process's copy of a model that is on servers.

    Args:
        scheduler: of learning rates; it follows the updates of the servers.
    """

    def __init__(
        self,
        session: MasterSession,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
    ) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._session = session
        self._leases = LeaseClient(session.master, session.worker_id)
        swap_parameters(model, optimizer, session.config.train.large_embedding)
        self._loop = OwnLoop(
            model,
            optimizer,
            None if scheduler is None else _Driven(scheduler),
            config=session.config,
            token=os.environ.get(ENV_TOKEN, ""),
            progress=session.progress,
        )
        optimizer.register_step_pre_hook(self._before_step)
        self._gradients = Reducer(model)
        self._left = False  # the script made no step of the batch before
        self._open = False
        self._steps = 0
        self._connected = 0  # life of the servers that this process has met
        self._dataset: Any = None
        self._batches: Batches | None = None
        self._passes = 0  # of the loader that this process went through
        self._next: tuple[pb.LeaseMessage, int] | None = None

    @property
    def step(self) -> int:
        """Batches of this process that are in the model, or about to be: it was stepped."""
        return self._steps + (self._open and self._loop.collected)

    @property
    def catching_up(self) -> bool:
        """Whether this process came late, and the others have done the pass that it is at."""
        return self._next is not None and self._next[0].epoch > self._passes

    def close(self) -> None:
        """Lets go of the servers."""
        self._loop.close()

    def evaluate(self, compute: Callable[[], T]) -> T:
        """What ``compute`` makes of the model as it is now; again if servers are lost meanwhile.

        Raises:
            UsageError: in the middle of a batch, whose gradient would be lost.
        """
        if self._open:
            raise UsageError(
                "an evaluation inside the loop over a loader: with parameter servers put it "
                "after the loop"
            )
        while True:
            self._pull()
            try:
                made = compute()
            finally:
                self._loop.end()
            if self._loop.lost is None:
                return made
            self._lose(self._loop.lost)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model as it is on the servers now; inside the loop, too."""
        while True:
            try:
                self._connect()
                return self._loop.state_dict()
            except ServersLostError as error:
                self._lose(error)
                self._session.wait_until_ready()

    def batches(
        self,
        dataset: Any,
        data: dict[str, Any],
        options: dict[str, Any],
        meter: Meter,
        *,
        passes: int,
    ) -> Iterator[Any]:
        """The batches of this process's tasks, until all tasks are done.

        Args:
            passes: the loader is gone through so often, an epoch each; 0: once, all its epochs.

        Raises:
            UsageError: a second loader, or one that asks for what servers do not do.
        """
        batches = self._begin(dataset, {**data, "epochs": passes or data["epochs"]}, options)
        number = self._passes
        while (found := self._next or self._lease()) is not None:
            self._next = None
            lease, life = found
            if passes and lease.epoch > number:
                self._next = found
                break
            try:
                yield from self._train(lease, life, batches, meter)
            except ServersLostError as error:
                self._open = False
                meter.settle(counted=False)
                self._leases.release([lease])
                self._lose(error)
            except GeneratorExit:
                # The script left its loop: others may have what is left.
                self._open = False
                with contextlib.suppress(MasterLostError, ValueError):
                    self._leases.release([lease])
                raise
        self._passes += 1
        if self._next is None:
            # What the script does with the model from now on it does with its last values.
            self.evaluate(lambda: None)

    def _begin(self, dataset: Any, data: dict[str, Any], options: dict[str, Any]) -> Batches:
        if self._batches is None:
            _check(dataset, data)
            batches = open_batches(dataset, data, 0, options)
            assert isinstance(batches, Batches)
            self._report(batches)
            self._dataset, self._batches = dataset, batches
        elif dataset is not self._dataset or self._passes >= data["epochs"]:
            raise UsageError(
                "a second loader: with parameter servers all epochs belong in one, "
                "job.loader(dataset, epochs=...)"
            )
        return self._batches

    def _report(self, batches: Batches) -> None:
        """Tells the master what there is to go through."""
        whole = batches.data
        self._session.report_data(
            pb.ScriptData(
                records=whole.records,
                epochs=whole.epochs,
                batch_size=whole.batch_size,
                records_per_task=_BATCHES_PER_TASK * whole.batch_size,
                shuffle=whole.shuffle,
                seed=whole.seed,
                files=whole.files,
            )
        )

    def _lease(self) -> tuple[pb.LeaseMessage, int] | None:
        """The next task, and the life of the servers that it is of; None: all are done."""
        heartbeat = self._session.heartbeat
        while True:
            if heartbeat.lost.is_set() or heartbeat.draining.is_set():
                raise DismissedError("the job goes on without this worker, or is over")
            answer = self._leases.lease(want=1)
            if answer.next == pb.LeaseResponse.FINISHED:
                return None
            if answer.next == pb.LeaseResponse.DRAIN:
                raise DismissedError("asked to leave")
            if answer.next == pb.LeaseResponse.CLUSTER_CHANGED:
                self._session.cluster = answer.cluster
            for lease in answer.leases:
                return lease, self._leases.incarnation

    def _train(
        self, lease: pb.LeaseMessage, life: int, batches: Batches, meter: Meter
    ) -> Iterator[Any]:
        self._connect()
        self._check_life(life)
        length = lease.end - lease.start
        offset = lease.offset
        if lease.retried:
            offset = max(offset, self._loop.committed(lease))
        first = lease.epoch * batches.data.records + lease.start
        size = batches.data.batch_size
        spans = [(at, min(at + size, length)) for at in range(offset, length, size)]
        loader = batches.of([(first + start, first + end) for start, end in spans])
        for span, batch in zip(spans, loader, strict=True):
            yield from self._update(lease, life, span, batch, meter)
            if self._session.heartbeat.draining.is_set() and span != spans[-1]:
                self._leases.release([lease])
                return
        self._leases.complete(lease, TaskResult(records=length - offset, steps=len(spans)))

    def _update(
        self, lease: pb.LeaseMessage, life: int, span: Span, batch: Any, meter: Meter
    ) -> Iterator[Any]:
        records = span[1] - span[0]
        self._loop.begin(keep_gradients=self._left)
        meter.open(records)
        self._open = True
        yield batch
        self._open = False
        self._check_life(life)
        self._left = not self._loop.collected
        if self._left:
            self._gradients.expect_fresh()
        self._loop.commit(Window(lease, *span, []), self._leases.retired_before)
        meter.settle(counted=True)
        self._steps += 1
        progress = self._session.progress
        progress.phase = "training"
        progress.steps += 1
        progress.records += records
        progress.note(meter.newest)

    def _before_step(self, *_: Any) -> None:
        """The servers run the optimizer; here a step only says that the gradients are complete."""
        if self._open:
            self._loop.collect()

    # ---- servers ----

    def _pull(self) -> None:
        """Gets the parameters of now, from whatever servers there are."""
        while True:
            try:
                self._connect()
                self._loop.begin()
                return
            except ServersLostError as error:
                self._lose(error)
                self._session.wait_until_ready()

    def _connect(self) -> None:
        life = self._session.cluster.incarnation
        if self._connected != life:
            self._loop.connect(self._session.cluster)
            self._connected = life

    def _check_life(self, life: int) -> None:
        """Leases are void where servers began again, whoever noticed it."""
        if life != self._connected:
            raise ServersLostError(f"life {life} of the servers is over, {self._connected} began")

    def _lose(self, error: ServersLostError) -> None:
        log.warning("parameter servers lost: %s", error)
        self._loop.close()
        self._connected = 0
        time.sleep(_RETRY_S)


def _check(dataset: Any, data: dict[str, Any]) -> None:
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
