"""A training script's view of its job: ``prepare``, ``loader``, and what else it may ask."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_edl.config import CheckpointConfig
from torch_edl.contract import report_model
from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import MasterRendezvous, RingRendezvous, TorchrunRendezvous
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.trainer import weights
from torch_edl.trainer.ending import Ending
from torch_edl.trainer.in_ring import Make, Merge, ScriptInRing
from torch_edl.trainer.loader import Loader, close_loops
from torch_edl.trainer.metrics import Meter
from torch_edl.trainer.saver import Saver, under_torchrun
from torch_edl.trainer.user_parts import check_parts, check_tables, gate, gate_scaler

if TYPE_CHECKING:
    from torch_edl.trainer.on_servers import ScriptOnServers


class Job:
    """One process's part in a job; made by :func:`init`."""

    def __init__(
        self,
        session: MasterSession | None,
        checkpoint: CheckpointConfig,
        *,
        seed: int,
        check_every: int,
        on_resize: Callable[[Job], None] | None,
    ) -> None:
        self.closed = False
        self._session = session
        self._seed = seed or (0 if session is None else session.config.train.seed)
        self._check_every = check_every
        self._on_resize = (lambda: None) if on_resize is None else partial(on_resize, self)
        self._part: ScriptInRing | ScriptOnServers | None = None
        self.meter = Meter()
        rendezvous: RingRendezvous | None = None
        if session is not None:
            checkpoint = session.config.checkpoint if session.config.checkpoint.dir else checkpoint
            rendezvous = MasterRendezvous(session)
        elif "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            rendezvous = TorchrunRendezvous()
            checkpoint = under_torchrun(checkpoint)
        self._rendezvous = rendezvous
        first = session is None or (not session.ring and not session.config.checkpoint.dir)
        self._saver = Saver(checkpoint, rendezvous, first=first)
        self.ending = Ending(
            self.close, lambda: self._session is not None and self._session.terminated.is_set()
        )
        if rendezvous is not None or checkpoint.dir:
            # Else there is nothing to end, and a notebook may let go of the model.
            self.ending.watch()

    # ---- what it says ----

    @property
    def rank(self) -> int:
        """This process's number among those that train now; it may change."""
        return self._place[0]

    @property
    def world_size(self) -> int:
        """How many processes train now; it may change."""
        return self._place[1]

    @property
    def _place(self) -> tuple[int, int]:
        formed = None if self._part is None else self._part.place
        # Before the first ring, and on servers: what the launcher said.
        env = os.environ
        return formed or (int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1")))

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one to print and to write files.

        It may change whenever ``rank`` does, so ask when there is something to write.
        """
        return self.rank == 0 and not self.late

    @property
    def on_servers(self) -> bool:
        """Whether the model is on parameter servers."""
        return self._part is not None and self._part.on_servers

    @property
    def restored(self) -> bool:
        """Whether the job goes on from a checkpoint."""
        return self._part is not None and self._part.restored

    @property
    def step(self) -> int:
        """Updates that the model has had, right after ``optimizer.step()`` the newest too; on
        parameter servers those of this process."""
        return 0 if self._part is None else self._part.step

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch at hand is the last one of its update: ``optimizer.step()`` acts."""
        return self._part is None or self._part.sync_gradients

    def metrics(self) -> dict[str, float]:
        """Means of what was logged since the last call, over this process, weighted by records."""
        return self.meter.take()

    @property
    def catching_up(self) -> bool:
        """Whether this process came late, and its script runs through what the others did."""
        return self.late if self._part is None else self._part.catching_up

    @property
    def late(self) -> bool:
        """Whether others trained before this process came, which has not joined them yet."""
        if self._part is None:
            return self._session is not None and self._session.ring > 0
        return self._part.late

    def log(self, **values: Any) -> None:
        """Notes metrics of the batch at hand: numbers, or tensors of one number.

        They count once the batch is in the model, and never twice.
        """
        self.meter.note(values)

    # ---- what a script does ----

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer],
        scheduler: Any = None,
        scaler: Any = None,
    ) -> Any:
        """Says what is trained; returns what it was given, the same objects, in that order.

        Args:
            model: on its device. What requires gradients now is trained.
            scheduler: of learning rates; steps of it count when the update did.
            scaler: a ``torch.amp.GradScaler``.

        Raises:
            UsageError: something of the wrong type; or called twice, but in one process that
                keeps no checkpoints, where the model is another from then on (a notebook).
        """
        if self._part is not None:
            if self._rendezvous is not None or self._saver.keeps:
                raise UsageError("prepare(): called twice; give all parts in one call")
            close_loops(self)
            self._part.close()
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        check_parts(model, optimizers, alone=self._rendezvous is None)
        given = tuple(part for part in (model, optimizer, scheduler, scaler) if part is not None)
        if self._session is not None and self._session.config.train.strategy != "allreduce":
            report = report_model(model, optimizers[0])
            with self.ending.dismissal():
                ready = self._session.start(report)
            if ready.strategy == "ps":
                self._part = self._serve(self._session, model, optimizers, scheduler)
                return given
        if self._saver.keeps:
            check_tables(model)
        stateful = [part for part in (scheduler, scaler) if part is not None]
        engine = RingEngine(
            Replica(model, optimizers, stateful),
            self._rendezvous,
            check_every=self._check_every,
            on_resize=self._on_resize,
            checkpoint=self._saver.newest,
        )
        if scheduler is not None:
            gate(scheduler, ("step",), engine)
        if scaler is not None:
            gate_scaler(scaler, engine)
        self._part = ScriptInRing(
            engine, self._rendezvous, self._session, self._saver, self.meter, self.ending
        )
        return given

    def _serve(
        self,
        session: MasterSession,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        scheduler: Any,
    ) -> ScriptOnServers:
        if len(optimizers) != 1:
            raise UsageError(
                f"prepare(): {len(optimizers)} optimizers; parameter servers run one, "
                "use --strategy allreduce"
            )
        self._saver.leave_to_servers(session.config.checkpoint)
        # Imported where it is needed: rings are not to wait for it.
        from torch_edl.trainer.on_servers import ScriptOnServers

        assert self._rendezvous is not None
        return ScriptOnServers(
            session, model, optimizers[0], scheduler, self._rendezvous, self.meter, self.ending
        )

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int = 1,
        epochs: int = 1,
        shuffle: bool = False,
        accumulate: int = 1,
        global_batch_size: int = 0,
        drop_last: bool = False,
        **options: Any,
    ) -> Loader:
        """Batches for the training loop, where a ``DataLoader`` was.

        Args:
            dataset: with ``__len__`` and ``__getitem__``, or an ``IterableDataset``.
            batch_size: records of a batch of this process, at most.
            epochs: passes over the data.
            shuffle: another order in each epoch, a function of the job's seed.
            accumulate: batches of this process in one update; ``optimizer.step()`` acts after
                the last of them.
            global_batch_size: records of an update over all processes, however many there are;
                batches of at most ``batch_size`` are accumulated where needed.
            drop_last: leave out what does not fill an update at the end of an epoch.
            options: of the ``DataLoader``: ``num_workers``, ``collate_fn``, ...

        Raises:
            UsageError: a value that cannot work.
        """
        data = {
            "batch_size": batch_size,
            "epochs": epochs,
            "shuffle": shuffle,
            "accumulate": accumulate,
            "global_batch_size": global_batch_size,
            "drop_last": drop_last,
            "seed": self._seed,
        }
        return Loader(self, dataset, data, options)

    def collect(self, make: Make, merge: Callable[[list[bytes]], Any]) -> Any:
        """Computes something over all processes once, as an evaluation does.

        Args:
            make: from (rank, world size) to this process's part; called again if the ring
                changes meanwhile.
            merge: from all parts, in the order of ranks, to what JSON can say; it must be the
                same in all processes.

        Returns:
            What ``merge`` gave, also in a process that joined later.
        """
        return self._together(make, lambda parts: (None, merge(parts)))[1]

    def gather(self, make: Make) -> list[bytes] | None:
        """What all processes make, in the order of ranks; nothing of it is kept.

        Args:
            make: see :meth:`collect`.

        Returns:
            None in a process that joined later.
        """
        return self._together(make, lambda parts: (parts, None))[0]

    def _together(self, make: Make, merge: Merge) -> tuple[list[bytes] | None, Any]:
        with self.ending.dismissal():
            return self._prepared().together(make, merge)

    def batches(self, loader: Loader) -> Generator[Any]:
        """For :class:`Loader`: the batches of one pass."""
        with self.ending.dismissal():
            yield from self._prepared().batches(loader)

    def _prepared(self) -> ScriptInRing | ScriptOnServers:
        if self._part is None:
            raise UsageError("call job.prepare(model, optimizer) before the first batch")
        return self._part

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model as one ``state_dict``, on the CPU, wherever its values are.

        What is on parameter servers is gathered: after the loop, as it was trained; inside, as it
        is by now. An embedding with ``num_embeddings`` is ``NAME.weight``, one without bound
        ``NAME.ids`` (n,) and ``NAME.vectors`` (n, dim). Any process may ask, by itself.

        Raises:
            UsageError: nothing was prepared yet, or the servers were left with :meth:`close`.
        """
        if self._part is None:
            raise UsageError("state_dict(): call job.prepare(model, optimizer) before")
        if self.closed and self.on_servers:
            raise UsageError("state_dict(): the job is closed; call it before job.close()")
        with self.ending.dismissal():
            return self._part.state_dict()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`state_dict` to a file, whole or not at all; rank 0 does.

        Args:
            path: ``.safetensors``, or ``.pt`` (``.pth``) for ``torch.load``.

        Raises:
            UsageError: another suffix.
            EdlError: the file cannot be written.
        """
        file = weights.checked(path)
        if self.is_main and not self.catching_up:
            weights.write(self.state_dict(), file)

    def close(self) -> None:
        """Ends this process's part: the last checkpoint is written, the others need not wait.

        Called at the end of the script by itself. A process that is not rank 0 waits here until
        the script of rank 0 is over: should that one die while it saves, another process takes
        its place, with the model that is still here.
        """
        if self.closed:
            return
        close_loops(self)
        self.closed = True
        self.ending.forget()
        try:
            if self._part is not None:
                self._part.close()
        finally:
            self._saver.close()
            if self._session is not None:
                self._session.close()
