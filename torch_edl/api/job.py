"""The interface of a training script to its job: ``prepare``, ``loader``, and the job's state."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import numpy as np
import torch
from torch import nn

from torch_edl.api.ending import Ending
from torch_edl.api.in_ring import Make, ScriptInRing, Totals
from torch_edl.api.job_state import JobState
from torch_edl.api.loader import Loader, close_loops, is_in_loop
from torch_edl.api.not_finite import NotFinite
from torch_edl.api.saver import Saver, TrainedSaver, run_of, under_torchrun
from torch_edl.api.script_fitting import fit_script
from torch_edl.api.user_parts import (
    check_companions,
    check_parts,
    check_schedule,
    check_several,
    check_state,
    check_summed,
    check_tables,
    forbid_lone_steps,
    gate_steps,
    warn_of_several,
)
from torch_edl.config import CheckpointConfig
from torch_edl.config.parts import training_dir
from torch_edl.engine.choose_strategy import choose
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import (
    MasterRendezvous,
    RingRendezvous,
    TorchrunRendezvous,
    own_host,
)
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.batches import is_paths, list_files
from torch_edl.pytorch.contract import report_model
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.process_group import StoreServer
from torch_edl.pytorch.ring.reducer import ReplicatedTorchModel
from torch_edl.training.loop import Meter

if TYPE_CHECKING:
    from torch_edl.api.on_servers import ScriptOnServers
    from torch_edl.interfaces.preprocessing import Fittable


M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer | Sequence[torch.optim.Optimizer])  # noqa: E741
S = TypeVar("S")
G = TypeVar("G")
F = TypeVar("F", bound="Fittable")


class Job(JobState):
    """The job of this process; :func:`init` makes it."""

    _folders: ClassVar[set[str]] = set()

    def __init__(
        self,
        session: MasterSession | None,
        checkpoint: CheckpointConfig,
        *,
        seed: int,
        check_every: int,
        on_resize: Callable[[Job], None] | None,
        on_nan: str = "stop",
        trained: TrainedSaver | None = None,
        before: Totals = Totals(),  # noqa: B008 - immutable
    ) -> None:
        self.closed = False
        """True after :meth:`close`."""
        super().__init__(session, Meter(warns=session is None))
        self._seed = seed or (0 if session is None else session.config.train.seed)
        self._check_every = check_every
        if session is not None and session.config.train.on_nan == "skip":
            on_nan = "skip"
        self._not_finite = NotFinite(on_nan, lambda: self.rank)
        self._on_resize = (lambda: None) if on_resize is None else partial(on_resize, self)
        self._unscheduled: list[torch.optim.Optimizer] = []
        self._files: dict[str, list[str]] = {}  # data files by the paths that name them
        self._before = before
        rendezvous: RingRendezvous | None = None
        if trained is not None:
            self._trained = True
        elif session is not None:
            checkpoint = self._settings(session, checkpoint)
            rendezvous = MasterRendezvous(session, StoreServer(own_host(session)))
        elif "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            rendezvous = TorchrunRendezvous()
            checkpoint = under_torchrun(checkpoint)
        self._rendezvous = rendezvous
        if rendezvous is not None and checkpoint.dir:
            self._take_folder(checkpoint.dir)
        # The master has checked the folder of the command line.
        given = session is not None and session.config.checkpoint.dir
        first = session is None or (not session.ring and not given)
        # Torchrun fixes the ranks; with a master, any process may become rank 0.
        writes = session is not None or int(os.environ.get("RANK", "0")) == 0
        run = run_of(session)
        self._saver = (
            Saver(
                checkpoint,
                rendezvous,
                run=run,
                writes=writes,
                first=first,
                models="" if session is None else session.models,
            )
            if trained is None
            else trained
        )
        self.ending = Ending(
            self.close, lambda: self._session is not None and self._session.departure.asked.is_set()
        )
        if rendezvous is not None or self._saver.keeps:
            # Without the exit handler, a notebook that trains alone can release the model.
            self.ending.watch()

    @classmethod
    def _take_folder(cls, folder: str) -> None:
        """Raise UsageError if another training of this process wrote its checkpoints to a folder,
        from which this one would continue."""
        path = os.path.realpath(folder)
        if path in cls._folders:
            raise UsageError(
                f"checkpoint_dir={folder}: another training of this script has used the folder; "
                "give each training a folder of its own"
            )
        cls._folders.add(path)

    @staticmethod
    def _settings(session: MasterSession, given: CheckpointConfig) -> CheckpointConfig:
        """Return the checkpoint settings of a training: those of the command line, or else those
        of the script. A later training has a folder of its own in that of the command line."""
        settings, number = session.config.checkpoint, session.training
        if not settings.dir:
            return given
        return replace(settings, dir=str(training_dir(settings.dir, number)))

    @property
    def totals(self) -> Totals:
        """Sums over this training and the earlier ones of the script."""
        return self._part.totals if isinstance(self._part, ScriptInRing) else self._before

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world_size}"
        where += ", on parameter servers" if self.on_servers else ""
        return f"<torch_edl job: {where}, step {self.step}{', closed' if self.closed else ''}>"

    # ---- training ----

    def fit(self, columns: F, data: Any) -> F:
        """Fit the preprocessing in one pass that all processes share, before the loader and the
        model are made.

        The result does not depend on the number of processes, nor on processes that are lost. The
        checkpoints of the job and ``--output`` contain the result. A job that resumes restores the
        result from its checkpoint.

        Args:
            columns: all columns that the job fits, declared alike in every process.
            data: paths of data files, or a dataset with ``__len__`` and ``__getitem__``. The
                columns receive the argument of a ``collate_fn``: tables or lists of bytes for
                files, lists of samples for a dataset.

        Returns:
            ``columns``, fitted.

        Raises:
            UsageError: the records do not have the columns, or cannot be cut into tasks; or the
                checkpoint has other columns.
            UserCodeError: the user's code that parses records raised.
        """
        with self.ending.dismissal():
            fit_script(columns, self._listed(data), self._session, self._saver)
        return columns

    @overload
    def prepare(
        self,
        model: M,
        optimizer: O,
        scheduler: None = None,
        scaler: None = None,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[M, O]: ...
    @overload
    def prepare(
        self,
        model: M,
        optimizer: O,
        scheduler: S,
        scaler: None = None,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[M, O, S]: ...
    @overload
    def prepare(
        self,
        model: M,
        optimizer: O,
        scheduler: None = None,
        *,
        scaler: G,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[M, O, G]: ...
    @overload
    def prepare(
        self,
        model: M,
        optimizer: O,
        scheduler: S,
        scaler: G,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[M, O, S, G]: ...
    def prepare(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any = None,
        scaler: Any = None,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> tuple[Any, ...]:
        """Register the model, its optimizers, schedulers and gradient scaler with the job.

        Args:
            model: the model, on its device. Parameters that require gradients now are trained.
            optimizer: the optimizer, or a list of optimizers.
            scheduler: learning rate scheduler, or a list of them. A scheduler steps only when the
                update changes the model.
            scaler: a ``torch.amp.GradScaler``.
            state: further objects that all processes share, by name, such as ``{"ema": ema}``:
                anything with ``state_dict`` and ``load_state_dict``. They are in checkpoints, and
                processes that join receive their states. Their methods ``update_parameters``,
                ``update`` and ``step`` do nothing in batches that do not change the model.

        Returns:
            A tuple of the arguments but ``state`` that are not None, the same objects in the order
            of the parameters: ``(model, optimizer)``, or ``(model, optimizer, scaler)`` without a
            scheduler. A list of optimizers or schedulers is one element.

        Raises:
            UsageError: an argument has the wrong type; or the method was called before. A process
                that trains alone without checkpoints, such as a notebook, may call the method
                again to replace the model.
        """
        if self._part is not None:
            if self._rendezvous is not None or self._saver.keeps:
                raise UsageError(
                    "prepare(): called twice; give all parts in one call (several models as one "
                    "nn.ModuleList, with a list of optimizers)"
                )
            close_loops(self)
            self._part.close()
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        check_parts(model, optimizers)
        alone = self._rendezvous is None
        (warn_of_several if alone else check_several)(model, optimizers)
        schedulers = check_companions(scheduler, scaler)
        further = check_state(state)
        self._unscheduled = [] if schedulers else optimizers
        forbid_lone_steps(
            optimizers,
            lambda: self.closed or self.catching_up or is_in_loop(self),
            alone=alone,
        )
        given = tuple(part for part in (model, optimizer, scheduler, scaler) if part is not None)
        if self._session is not None and self._session.config.train.strategy != "allreduce":
            report = report_model(model, optimizers[0])
            with self.ending.dismissal():
                ready = self._session.start(report)
            if self._session.training > 1 and ready.strategy != "ps":
                # The strategy is that of the first training.
                choose("allreduce", report.embeddings, max_workers=1, large_embedding=0)
            if ready.strategy == "ps":
                if further:
                    raise UsageError(
                        f"prepare(state=): {', '.join(further)}: processes on parameter servers "
                        "make different updates and share no further state; use --strategy "
                        "allreduce"
                    )
                self._part = self._serve(self._session, model, optimizers, schedulers)
                return given
        if not alone:
            check_summed(model)
        if self._saver.keeps:
            check_tables(model)
        stateful = schedulers if scaler is None else [*schedulers, scaler]
        config = None if self._session is None else self._session.config
        loads = config is not None and config.checkpoint.load_optimizer
        replica = Replica(model, optimizers, stateful, further, loads_optimizer=loads)
        if further:
            replica.state()  # raises if a value can be neither sent nor written
        engine = RingEngine(
            ReplicatedTorchModel(replica, alone=alone),
            self._rendezvous,
            check_every=self._check_every,
            on_resize=self._on_resize,
            checkpoint=self._saver.newest,
            not_finite=self._not_finite,
        )
        gate_steps(schedulers, scaler, further, engine)
        self._part = ScriptInRing(
            engine,
            self._rendezvous,
            self._session,
            self._saver,
            self.meter,
            self.ending,
            self._before,
        )
        return given

    def _serve(
        self,
        session: MasterSession,
        model: nn.Module,
        optimizers: list[torch.optim.Optimizer],
        schedulers: list[Any],
    ) -> ScriptOnServers:
        for what, parts in (("optimizers", optimizers), ("schedulers", schedulers)):
            if len(parts) > 1:
                raise UsageError(
                    f"prepare(): {len(parts)} {what}; parameter servers run one, "
                    "use --strategy allreduce"
                )
        self._saver.leave_to_servers(session.config.checkpoint)
        # Imported here, since jobs in a ring do not need the module.
        from torch_edl.api.on_servers import ScriptOnServers

        assert self._rendezvous is not None
        scheduler = schedulers[0] if schedulers else None
        return ScriptOnServers(
            session,
            model,
            optimizers[0],
            scheduler,
            self._rendezvous,
            self.meter,
            self.ending,
            self._not_finite,
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
        """Return the loader of the training loop, which takes the place of a ``DataLoader``.

        Args:
            dataset: a dataset with ``__len__`` and ``__getitem__``, an ``IterableDataset``, or
                paths of data files.
            batch_size: maximum number of records in a batch of this process.
            epochs: number of passes over the dataset.
            shuffle: shuffle the records of each epoch; the order depends on the job's seed.
            accumulate: number of batches of this process in an update; ``optimizer.step()``
                changes the model after the last one.
            global_batch_size: number of records in an update over all processes, for any number of
                processes; batches of at most ``batch_size`` are accumulated as needed. 0: the
                number of records depends on the number of processes.
            drop_last: drop the records at the end of an epoch that do not fill an update.
            options: arguments of ``torch.utils.data.DataLoader``: ``num_workers``,
                ``collate_fn``, ...

        Raises:
            UsageError: an argument is invalid.
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
        # Checkpoints hold these values as JSON, which has no numbers of numpy.
        plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in data.items()}
        return Loader(self, self._listed(dataset), plain, options)

    def _listed(self, dataset: Any) -> Any:
        """Return the data files that paths name, or any other dataset unchanged. Files are listed
        once, since a file that is added later would be in other passes of other processes."""
        if not is_paths(dataset):
            return dataset
        files = list_files(dataset)
        if self._rendezvous is None:
            return files
        return self._files.setdefault(repr(dataset), files)

    def collect(self, make: Make, merge: Callable[[list[bytes]], Any]) -> Any:
        """Compute a value over all processes once, such as the result of an evaluation.

        Args:
            make: function from (rank, world size) to the part of this process; called again if
                the ring changes before all parts are collected.
            merge: function from all parts, in the order of ranks, to a value that JSON can
                represent; the value must be the same in all processes.

        Returns:
            The value of ``merge``. A process that joined afterwards gets the same value in a ring,
            and may get None on parameter servers.
        """
        with self.ending.dismissal():
            return self._prepared().collect(make, merge)

    def gather(self, make: Make) -> list[bytes] | None:
        """Return the parts of all processes, in the order of ranks. The parts are not stored.

        Args:
            make: see :meth:`collect`.

        Returns:
            The parts; on parameter servers one part, which this process computes as rank 0 of 1.
            None in a process that joined afterwards.
        """
        with self.ending.dismissal():
            return self._prepared().gather(make)

    def batches(self, loader: Loader) -> Generator[Any]:
        """Yield the batches of one pass over a loader.

        Raises:
            UsageError: :meth:`prepare` was not called, or does not know a scheduler.
        """
        with self.ending.dismissal():
            part = self._prepared()
            check_schedule(self._unscheduled)
            with self.ending.loop():
                yield from part.batches(loader)

    def _prepared(self) -> ScriptInRing | ScriptOnServers:
        if self._part is None:
            raise UsageError("call job.prepare(model, optimizer) before the first batch")
        return self._part

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole model as one ``state_dict`` on the CPU.

        Values on parameter servers are gathered: after the loop in their final state, inside the
        loop in their current state. An embedding with ``num_embeddings`` has the key
        ``NAME.weight``; an embedding without a bound has ``NAME.ids`` (n,) and ``NAME.vectors``
        (n, dim). A single process may call this method.

        Raises:
            UsageError: no model was prepared, or the model is on servers and the job is closed.
        """
        if self._part is None:
            raise UsageError("state_dict(): call job.prepare(model, optimizer) before")
        if self.closed and self.on_servers:
            raise UsageError("state_dict(): the job is closed; call it before job.close()")
        with self.ending.dismissal():
            return self._part.state_dict()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`state_dict` to a file on rank 0, atomically.

        Args:
            path: a path that ends with ``.safetensors``, or with ``.pt`` (``.pth``) for
                ``torch.load``.

        Raises:
            UsageError: the suffix is unknown.
            EdlError: the file cannot be written.
        """
        file = state_dict.checked(path)
        if self.is_main and not self.catching_up:
            state_dict.write(self.state_dict(), file)

    def close(self) -> None:
        """Write a last checkpoint and leave the job.

        The end of the script calls this method. In a ring, a process that is not rank 0 waits until
        the script of rank 0 is over: if rank 0 dies while it saves, a waiting process takes its
        place and saves its own copy of the model.
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
            self._saver.release()
            if self._session is not None:
                self._session.close()
