"""A training script's view of its job: ``prepare``, ``loader``, and what else it may ask."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_edl.contract import report_model
from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import MasterRendezvous, RingRendezvous, TorchrunRendezvous
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.trainer import weights
from torch_edl.trainer.ending import Ending
from torch_edl.trainer.interrupts import Interrupts
from torch_edl.trainer.loader import Loader, Reading
from torch_edl.trainer.metrics import Meter
from torch_edl.trainer.prepared import check_parameters, check_tables, gate, gate_scaler
from torch_edl.trainer.saver import Saver, Settings, write_output

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from torch_edl.trainer.on_servers import ScriptOnServers


class Job:
    """One process's part in a job; made by :func:`init`."""

    def __init__(
        self,
        session: MasterSession | None,
        settings: Settings,
        *,
        seed: int,
        check_every: int,
        on_resize: Callable[[Job], None] | None,
    ) -> None:
        self.closed = False
        self.reading = Reading()
        self.restored = False
        """It goes on from a checkpoint."""
        self._session = session
        self._seed = seed or (0 if session is None else session.config.train.seed)
        self._check_every = check_every
        self._on_resize = on_resize
        self._engine: RingEngine | None = None
        self._served: ScriptOnServers | None = None
        self._meter = Meter()
        self._passes = 0
        self.epochs_begun = 0
        """Epochs of all loops over loaders that this process went into, or ran through."""
        self.records_before = self.records_here = 0
        """Of the loops before the newest, and of that."""
        self._first_step = 0
        self._skipped = False  # a loader, whose records were in the model before
        rendezvous: RingRendezvous | None = None
        if session is not None:
            settings = settings.under(session.config.checkpoint)
            rendezvous = MasterRendezvous(
                session.master,
                session.worker_id,
                session.heartbeat,
                session.progress,
                heartbeat_timeout_s=session.config.cluster.heartbeat_timeout_s,
            )
        elif "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            rendezvous = TorchrunRendezvous()
            settings = settings.under_torchrun()
        self._rendezvous = rendezvous
        first = session is None or (not session.ring and not session.config.checkpoint.dir)
        self._saver = Saver(settings, rendezvous, first=first)
        self.ending = Ending(
            self.close, lambda: self._session is not None and self._session.terminated.is_set()
        )
        self._interrupts: Interrupts | None = None
        if rendezvous is None and settings.directory:
            self._interrupts = Interrupts(self._save_interrupted)
        if rendezvous is not None or settings.directory:
            # Else there is nothing to end, and a notebook may let go of the model.
            self.ending.watch()

    # ---- what it says ----

    @property
    def rank(self) -> int:
        """This process's number among those that train now; it may change."""
        if self._served is not None:
            return self._served.rank
        if self._rendezvous is not None and (self._engine is None or not self._engine.rings):
            return int(os.environ.get("RANK", "0"))  # what the launcher said
        return 0 if self._engine is None else self._engine.rank

    @property
    def world_size(self) -> int:
        """How many processes train now; it may change."""
        if self._served is not None:
            return self._served.world_size
        if self._rendezvous is not None and (self._engine is None or not self._engine.rings):
            return int(os.environ.get("WORLD_SIZE", "1"))
        return 1 if self._engine is None else self._engine.world

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0: the one to print and to write files.

        It may change whenever ``rank`` does, so ask when there is something to write.
        """
        return self.rank == 0 and not self.late

    @property
    def on_servers(self) -> bool:
        """Whether the model is on parameter servers."""
        return self._served is not None

    @property
    def step(self) -> int:
        """Updates that the model has had, right after ``optimizer.step()`` the newest too; on
        parameter servers those of this process."""
        if self._served is not None:
            return self._served.step
        return 0 if self._engine is None else self._engine.steps

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch at hand is the last one of its update: ``optimizer.step()`` acts."""
        return self._engine is None or self._engine.sync_gradients

    def metrics(self) -> dict[str, float]:
        """Means of what was logged since the last call, over this process, weighted by records."""
        return self._meter.take()

    def totals(self) -> dict[str, tuple[float, int]]:
        """As :meth:`metrics`, but the sums (value times records) and the records."""
        return self._meter.totals()

    @property
    def catching_up(self) -> bool:
        """Whether this process came late, and its script runs through what the others did."""
        if self._served is not None:
            return self._served.catching_up
        return self.late or (self._engine is not None and self._engine.catching_up)

    def log(self, **values: Any) -> None:
        """Notes metrics of the batch at hand: numbers, or tensors of one number.

        They count once the batch is in the model, and never twice.
        """
        self._meter.note(values)

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
        if self._engine is not None or self._served is not None:
            if self._rendezvous is not None or self._saver.keeps:
                raise UsageError("prepare(): called twice; give all parts in one call")
            self.reading.close()
            self._release()
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        if not isinstance(model, nn.Module):
            raise UsageError(f"prepare(): expected a torch.nn.Module, not {type(model).__name__}")
        for each in optimizers:
            if not isinstance(each, torch.optim.Optimizer):
                raise UsageError(
                    f"prepare(): expected a torch.optim.Optimizer, not {type(each).__name__}"
                )
        check_parameters(model, optimizers, alone=self._rendezvous is None)
        given = tuple(part for part in (model, optimizer, scheduler, scaler) if part is not None)
        if self._session is not None and self._session.config.train.strategy != "allreduce":
            report = report_model(model, optimizers[0])
            with self.ending.dismissal():
                ready = self._session.start(report)
            if ready.strategy == "ps":
                self._serve(self._session, model, optimizers, scheduler)
                return given
        if self._saver.keeps:
            check_tables(model)
        stateful = [part for part in (scheduler, scaler) if part is not None]
        engine = RingEngine(
            Replica(model, optimizers, stateful),
            self._rendezvous,
            check_every=self._check_every,
            on_resize=self._resized,
            checkpoint=self._saver.newest,
        )
        self._engine = engine
        if scheduler is not None:
            gate(scheduler, ("step",), engine)
        if scaler is not None:
            gate_scaler(scaler, engine)
        if self._session is not None:
            self._session.heartbeat.on_broken_ring = engine.interrupt
        restored = self._saver.newest()
        self.restored = restored is not None
        if restored is not None and self._rendezvous is None:
            engine.restore(restored, values_only=False)
            self._first_step = self.step
            log.info("going on from %s, step %d", restored, self.step)
        return given

    def _serve(
        self,
        session: MasterSession,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        scheduler: Any,
    ) -> None:
        if len(optimizers) != 1:
            raise UsageError(
                f"prepare(): {len(optimizers)} optimizers; parameter servers run one, "
                "use --strategy allreduce"
            )
        self._saver.leave_to_servers(session.config.checkpoint)
        # Imported where it is needed: rings are not to wait for it.
        from torch_edl.trainer.on_servers import ScriptOnServers

        self._served = ScriptOnServers(session, model, optimizers[0], scheduler, self._meter)

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

    def collect(
        self, make: Callable[[int, int], bytes], merge: Callable[[list[bytes]], Any]
    ) -> Any:
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

    def gather(self, make: Callable[[int, int], bytes]) -> list[bytes] | None:
        """What all processes make, in the order of ranks; nothing of it is kept.

        Args:
            make: see :meth:`collect`.

        Returns:
            None in a process that joined later.
        """
        return self._together(make, lambda parts: (parts, None))[0]

    def _together(
        self,
        make: Callable[[int, int], bytes],
        merge: Callable[[list[bytes]], tuple[list[bytes] | None, Any]],
    ) -> tuple[list[bytes] | None, Any]:
        served = self._served
        if served is not None:
            if served.catching_up:
                return None, None
            # No process waits for another here: each does the whole of it, on today's model.
            with self.ending.dismissal():
                return merge([served.evaluate(lambda: make(0, 1))])
        number, engine = self.enter_pass()
        parts = None
        with self.ending.dismissal():
            made = engine.agree(make, lambda: engine.replica.position.pass_index == number)
        position = engine.replica.position
        if made is not None:
            parts, result = merge(made)
            position.results[str(number)] = json.loads(json.dumps(result))
            position.pass_index, position.records = number + 1, 0
        else:
            engine.catching_up = True
        return parts, position.results.get(str(number))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model as one ``state_dict``, on the CPU, wherever its values are.

        What is on parameter servers is gathered: after the loop, as it was trained; inside, as it
        is by now. An embedding with ``num_embeddings`` is ``NAME.weight``, one without bound
        ``NAME.ids`` (n,) and ``NAME.vectors`` (n, dim). Any process may ask, by itself.

        Raises:
            UsageError: nothing was prepared yet, or the servers were left with :meth:`close`.
        """
        if self._served is not None:
            if self.closed:
                raise UsageError("state_dict(): the job is closed; call it before job.close()")
            with self.ending.dismissal():
                return self._served.state_dict()
        if self._engine is None:
            raise UsageError("state_dict(): call job.prepare(model, optimizer) before")
        return weights.copied(self._engine.replica.model)

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
        self.reading.close()
        self.closed = True
        ending = self.ending
        ending.forget()
        try:
            if self._engine is not None:
                if ending.finished and self.restored and self._skipped:
                    self._note_if_over()
                if ending.finished or ending.last:
                    if ending.last and self._session is not None:
                        self._session.heartbeat.beat()  # does the user stop the whole job?
                    asked = self._rendezvous is not None and self._rendezvous.stopping
                    self._saver.save_last(self._engine, last=ending.last, asked=asked)
                if ending.finished and self._session is not None:
                    config = self._session.config
                    write_output(self._engine, config.checkpoint.output, job=config.name)
                with ending.dismissal():
                    self._engine.leave(finished=ending.finished)
        finally:
            self._saver.close()
            if self._served is not None:
                self._served.close()
                if self._rendezvous is not None:
                    self._rendezvous.leave(0, finished=ending.finished)
            if self._session is not None:
                self._session.close()

    # ---- for loaders ----

    def interrupts(self) -> contextlib.AbstractContextManager[None]:
        """Within it a signal that ends the process waits for the end of the update."""
        if self._interrupts is None:
            return contextlib.nullcontext()
        return self._interrupts.put_off()

    def heed_interrupt(self) -> None:
        """Between two updates: ends the process if a signal came meanwhile."""
        if self._interrupts is not None:
            self._interrupts.heed()

    def _save_interrupted(self) -> None:
        if self._engine is not None:
            self._saver.save_last(self._engine, last=True)

    def enter_pass(self, *, epochs: int = 0) -> tuple[int, RingEngine]:
        """The number of a pass that begins, and the engine, in its ring.

        Args:
            epochs: of a pass over data; 0: it is none.
        """
        engine = self._engine
        if engine is None:
            raise UsageError("call job.prepare(model, optimizer) before the first batch")
        number, self._passes = self._passes, self._passes + 1
        if not engine.joined:
            with self.ending.dismissal():
                engine.join()
            self._first_step = self.step
        position = engine.replica.position
        position.extend(number, epochs)
        if position.pass_index < number:
            # The loop before was left early; a traceback may keep its iterator from ending.
            engine.settle()
            position.pass_index, position.records = number, 0
        # A process that joins late runs through what the others did before it came.
        engine.catching_up = position.pass_index > number
        self._skipped |= engine.catching_up and epochs > 0
        return number, engine

    def check_pass(self, number: int) -> None:
        """Raises UsageError if another pass began while that one was under way."""
        if self._passes != number + 1:
            raise UsageError(
                "another loop over a loader, or an evaluation, began inside this loop; put it "
                "after the loop (an epoch each: epochs=1)"
            )

    @property
    def late(self) -> bool:
        """Whether others trained before this process came: it warms up before it asks in."""
        joined = self._engine is not None and self._engine.joined
        return self._session is not None and self._session.ring > 0 and not joined

    def _release(self) -> None:
        """A cell of a notebook is run again: what was prepared before is let go of."""
        assert self._engine is not None
        self._engine.release()

    def _note_if_over(self) -> None:
        """Says so where there was nothing left to train."""
        newest = self._saver.newest()
        if self.is_main and newest is not None and self.step == self._first_step:
            log.warning(
                "%s holds all that this script trains; raise epochs to train on from there", newest
            )

    def _resized(self) -> None:
        if self._on_resize is not None:
            self._on_resize(self)
