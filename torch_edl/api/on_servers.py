"""A training script whose model is on parameter servers.

There is no ring: each process trains its own tasks, without waiting for the other processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import IterableDataset

from torch_edl.api.ending import Ending
from torch_edl.api.in_ring import Make
from torch_edl.api.loader import Loader
from torch_edl.api.not_finite import NotFinite
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.data.feeder import Updates
from torch_edl.data.passes import Span
from torch_edl.data.tasks import LeasedTasks
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.errors import ServersLostError, UsageError
from torch_edl.interfaces import Minibatch, Update
from torch_edl.master_client.leases import HeldLease, LeaseClient
from torch_edl.master_client.session import MasterSession
from torch_edl.nn.model_tables import set_defaults, swap_large
from torch_edl.pytorch.batches import Batches, is_paths, open_batches
from torch_edl.pytorch.gradient_hooks import are_finite
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.training.leased import LeasedUpdates, servers_lost_level
from torch_edl.training.loop import Meter, loop
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S = 0.2
_BATCHES_PER_TASK = 32


class ScriptOnServers:
    """The state of this process in a job whose model is on parameter servers.

    :class:`~torch_edl.api.job.Job` documents the methods of the same names. All methods raise
    DismissedError if the job continues without this process.

    Args:
        scheduler: learning rate scheduler, driven by the updates of the servers; None: none.
    """

    on_servers = sync_gradients = True
    late = restored = False
    place: tuple[int, int] | None = None

    def __init__(
        self,
        session: MasterSession,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        rendezvous: RingRendezvous,
        meter: Meter,
        ending: Ending,
        not_finite: NotFinite,
    ) -> None:
        self._session = session
        self._optimizer = optimizer
        self._not_finite = not_finite
        self._rendezvous = rendezvous
        self._meter = meter
        self._ending = ending
        # Rows that decay towards zero become denormal numbers, which are many times slower. The
        # servers flush denormal numbers too.
        torch.set_flush_denormal(True)
        train = session.config.train
        restored = bool(session.cluster.restored_from)
        swap_large(model, train.large_embedding, optimizer, restored=restored)
        set_defaults(model, train)
        self._model = ServedTorchModel(model, optimizer, scheduler)
        self._engine = ServersEngine(
            self._model,
            config=session.config,
            token=os.environ.get(ENV_TOKEN, ""),
            status=session.progress,
            resolve=session.resolve,
            is_sound=self._is_sound,
        )
        session.heartbeat.on_servers = self._engine.follow
        leases = self._leases = LeaseClient(session.master, session.worker_id)
        leases.incarnation = session.cluster.incarnation
        tasks = LeasedTasks(leases, self._prepare)
        session.heartbeat.on_give_back = tasks.give_back
        self._source = LeasedUpdates(
            self._engine,
            tasks,
            leases,
            session,
            call_back=self._note,
        )
        self._steps = 0
        self._first: Loader | None = None
        self._batches: Batches  # shared by all loaders
        self._passes = self._epochs = 0  # number of loops that began, and of their epochs
        self._meetings = 0  # number of calls of collect() since the newest loop began
        self.catching_up = False
        """True if this process joined late, and the others have completed its current pass."""

    @property
    def step(self) -> int:
        """Number of batches that this process has trained, including those whose gradients are not
        on the servers yet."""
        return self._steps + self._engine.steps_ahead

    def close(self) -> None:
        """Disconnect from the servers, and report the end of this process to the master."""
        self._engine.close()
        self._source.close()
        self._rendezvous.leave(0, finished=self._ending.finished)

    def collect(self, make: Make, merge: Callable[[list[bytes]], Any]) -> Any:
        """Return the value of ``merge`` for the parts of all processes. All processes are at the
        same point of their scripts, so the model does not change meanwhile."""
        self._require_no_update()
        self._meetings += 1
        value = self._session.meet(
            self._passes,
            self._meetings,
            lambda rank, world: self.evaluate(lambda: make(rank, world)),
            lambda parts: json.dumps(merge(parts)),
        )
        return json.loads(value)

    def gather(self, make: Make) -> list[bytes] | None:
        """Return the part of a single rank that covers all records; None if this process is
        catching up. Every process computes the whole result, since it may be too large to exchange.
        No process trains meanwhile."""
        parts = None if self.catching_up else [self.evaluate(lambda: make(0, 1))]
        self.collect(lambda rank, world: b"", lambda parts: None)
        return parts

    def evaluate(self, compute: Callable[[], T]) -> T:
        """Return the value of ``compute`` on the current model; ``compute`` is called again if
        servers are lost meanwhile.

        Raises:
            UsageError: the call is inside the loop over a loader, where the gradient of the batch
                would be lost.
        """
        self._require_no_update()

        def evaluated() -> T:
            with self._engine.evaluating():
                return compute()

        return self._insist(evaluated)

    def _require_no_update(self) -> None:
        if self._engine.in_update:
            raise UsageError(
                "an evaluation inside the loop over a loader: with parameter servers put it "
                "after the loop"
            )

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._insist(lambda: self._model.gathered(self._engine.settled()))

    def _insist(self, ask: Callable[[], T]) -> T:
        """Return the value of ``ask``; if servers are lost, wait for their replacements and call
        ``ask`` again."""
        while True:
            try:
                self._source.connect()
                return ask()
            except ServersLostError as error:
                log.log(servers_lost_level(error), "parameter servers lost: %s", error)
                self._source.disconnect()
                time.sleep(_RETRY_S)
                self._session.wait_until_ready()

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Yield the batches of this process's tasks, until all tasks of the pass are done.

        Raises:
            UsageError: the loader differs from the first one in its data or arguments, or has an
                argument that parameter servers do not support.
        """
        self._begin(loader)
        steps = loop(self._engine, self._source, self._meter, self._session.progress.seconds)
        with contextlib.closing(steps) as batches:
            yield from batches
        # Gives the script the final values of the model.
        self.evaluate(lambda: None)

    def _begin(self, loader: Loader) -> None:
        of_pass = loader.data["epochs"]
        planned = of_pass * max(1, loader.passes)
        if self._first is None:
            _check(loader.given, loader.data)
            self._first = loader
            whole = self._open(planned).data
            self._session.report_data(
                pb.ScriptData(
                    records=whole.records,
                    epochs=whole.epochs,
                    batch_size=whole.batch_size,
                    records_per_task=_BATCHES_PER_TASK * whole.batch_size,
                    shuffle=whole.shuffle,
                    seed=whole.seed,
                    files=whole.files,
                    samples=whole.samples,
                    open=planned == 1,
                    first_records=loader.first_records,
                )
            )
        _check_same(self._first, loader)
        self._passes, self._meetings = self._passes + 1, 0
        self._epochs += of_pass
        if self._epochs > self._batches.data.epochs:
            self._batches.close()
            self._open(self._epochs)
        self.catching_up = self._session.begin_pass(self._passes, self._epochs)
        self._leases.epochs = self._epochs

    def _open(self, epochs: int) -> Batches:
        loader = self._first
        assert loader is not None
        batches = open_batches(loader.given, {**loader.data, "epochs": epochs}, 0, loader.options)
        assert isinstance(batches, Batches)
        self._batches = batches
        return batches

    def _prepare(self, lease: HeldLease) -> Updates:
        """Return a function from an offset in a task to its updates, one for each batch."""
        whole, size = self._batches.data, lease.end - lease.start
        first, step = lease.epoch * whole.records + lease.start, whole.batch_size

        def name(start: int, end: int) -> str:
            return self._batches.names([(first + start, first + end)])

        watch = partial(self._leases.step, lease) if lease.suspect else None

        def updates(offset: int) -> Iterator[Update]:
            spans = [(at, min(at + step, size)) for at in range(offset, size, step)]
            batches = self._batches.of([(first + start, first + end) for start, end in spans])
            for start, end in spans:
                known = name(start, end) if lease.suspect else ""
                with self._leases.step(lease, start, size, known):
                    batch = next(batches)
                minibatch = Minibatch(0, start, end - start, batch)
                of_rank = partial(self._name, (first + start, first + end))
                yield Update(
                    start, end, [minibatch], 1, end - start, lease, name=name, watch=watch,
                    of_rank=of_rank,
                )  # fmt: skip

        return updates

    def _name(self, span: Span, rank: int) -> str:
        return self._batches.names([span])

    def _is_sound(self, update: Update, minibatch: Minibatch) -> bool:
        """Return False if the gradients of a batch are not finite and are left out."""
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        if are_finite([p.grad for p in parameters if p.grad is not None]):
            return True
        self._not_finite(update, minibatch, self._not_finite.rank())
        self._optimizer.zero_grad()
        update.losses.append(math.nan)  # counts as a minibatch that --on-nan skip left out
        return False

    def _note(self, event: str, *args: Any) -> None:
        if event == "on_batch_end":
            self._steps += 1
            self._session.progress.note(self._meter.newest)


def _check_same(first: Loader, loader: Loader) -> None:
    """Raise UsageError unless both loaders have the same data and arguments; ``epochs`` may
    differ."""
    if loader.given is not first.given and not (
        is_paths(loader.given) and loader.given == first.given
    ):
        raise UsageError(
            "a loader of a second dataset: with parameter servers all loops train on one dataset; "
            "evaluate others with a DataLoader, outside of the loop"
        )
    for name, value in loader.data.items():
        if name != "epochs" and value != first.data[name]:
            raise UsageError(
                f"{name}={value}: the first loader had {first.data[name]}; with parameter servers "
                "all loops train in the same batches"
            )


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
