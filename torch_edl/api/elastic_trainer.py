"""The trainer class: a ready-made training loop.

``fit`` is a loop over :meth:`Job.loader`, built on the public interface of the job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack

import torch
from torch import nn
from torch.utils.data import IterableDataset

from torch_edl.api import evaluate
from torch_edl.api.inputs import OwnLoss, features_of, labelled, moved, required_inputs, whole
from torch_edl.api.job import Job
from torch_edl.api.loader import Loader
from torch_edl.api.opening import JobOptions, adopted, check_options, is_plain
from torch_edl.api.user_parts import (
    Schedule,
    check_function,
    check_metrics,
    check_parts,
    fresh_metrics,
    move,
)
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.contract import describe
from torch_edl.pytorch.step import caller
from torch_edl.training.contract.functions import check_callbacks
from torch_edl.wire import master_pb2 as pb

Precision = Literal["fp32", "bf16", "fp16"]
Figures = dict[str, float]

_EVENTS = frozenset(
    {"on_train_begin", "on_epoch_begin", "on_batch_end", "on_epoch_end", "on_train_end"}
)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class ElasticTrainer:
    """Trains a model in one process, or in all processes of an elastic job.

    Args:
        model: any module. ``forward`` receives a batch of features: a tuple as positional
            arguments, a dict as keyword arguments.
        loss: a function from labels and predictions to a scalar: a loss of torch, such as
            ``nn.CrossEntropyLoss()`` or a function of ``torch.nn.functional``; or your own
            function, whose parameter names determine the order of the arguments. The order is
            (labels, predictions) if the names are not known. None: the model receives the labels
            too and returns its own loss, as the models of Hugging Face do.
        optimizer: optimizer of the model's parameters.
        scheduler: scheduler of ``torch.optim.lr_scheduler``.
        scheduler_interval: when the scheduler steps: after each ``"step"`` (update) or each
            ``"epoch"``. A ``ReduceLROnPlateau`` needs ``"epoch"``; it gets the loss of
            ``eval_dataset``, or the training loss without ``eval_dataset``.
        metrics: metrics of evaluations by name: functions such as ``loss``, averaged over records;
            or objects whose states can be merged (``torch_edl.metrics``, torchmetrics).
        precision: precision of autocast: ``"bf16"``, or ``"fp16"`` with a gradient scaler (on a
            GPU).
        clip_grad_norm: maximum norm of the gradient of an update; 0: no limit.
        device: device that the model is moved to; ``"auto"``: the GPU of this process, else the
            CPU; None: the model is not moved.
        callbacks: objects with any of ``on_train_begin(model)``, ``on_epoch_begin(epoch)``,
            ``on_batch_end(step, loss)``, ``on_epoch_end(epoch, figures)``,
            ``on_train_end(model)``. Epochs count from 1.
        state: further objects that all processes share, such as an average of the model; see
            :meth:`Job.prepare`. A callback may update them in ``on_batch_end``.
        job: the job of this process. None: the open job that ``torch_edl.init`` made, unless
            another model was prepared with it; otherwise the trainer makes a job.
        options: arguments of :func:`torch_edl.init` for a job that the trainer makes: ``seed``,
            ``checkpoint_dir``, ``checkpoint_every``, ``keep_checkpoints``, ``resume``,
            ``check_every``, ``on_resize``, ``on_nan``.

    Raises:
        UsageError: an argument is invalid; the message says what to write instead.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        scheduler_interval: Literal["step", "epoch"] = "step",
        metrics: Mapping[str, Any] | None = None,
        precision: Precision = "fp32",
        clip_grad_norm: float = 0.0,
        device: torch.device | str | None = None,
        callbacks: Sequence[Any] = (),
        state: Mapping[str, Any] | None = None,
        job: Job | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        check_parts(model, [optimizer])
        self._schedule = Schedule(scheduler, scheduler_interval)
        if clip_grad_norm < 0:
            raise UsageError(f"clip_grad_norm={clip_grad_norm}: must be 0 or more; 0: no limit")
        if device is not None:
            move(model, optimizer, device)
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._clip = clip_grad_norm
        self._callbacks = check_callbacks(callbacks, _EVENTS, "an ElasticTrainer")
        self._stopped = False
        self._call, self._batch = caller(model), labelled
        self._predict: Callable[[Any], Any]
        self._loss: Callable[[Any, Any], Any]
        if loss is None:
            own, self._batch = OwnLoss(self._call), whole
            self._call, self._predict, self._loss = own.call, own.predict, own.loss
        else:
            loss = loss.to(self.device) if isinstance(loss, nn.Module) else loss
            self._predict, self._loss = self._call, check_function("loss", loss)
        checked = check_metrics(metrics or {})
        self._metrics = lambda: fresh_metrics(checked, self.device)
        if precision not in _DTYPES:
            raise UsageError(f"precision={precision!r}: 'fp32', 'bf16' or 'fp16'")
        if precision == "fp16" and self.device.type == "cpu":
            raise UsageError("precision='fp16' needs a GPU; use 'bf16' on a CPU")
        self._dtype = _DTYPES[precision]
        self._scaler = torch.amp.GradScaler(self.device.type) if precision == "fp16" else None
        if job is not None:
            check_options(options)
        self.job = job or adopted(options)
        self.job.prepare(model, optimizer, scheduler, self._scaler, state=state)
        if self.job.on_servers:
            self._schedule.check_servers()

    @property
    def device(self) -> torch.device:
        """The device of the first parameter; the CPU for a model without parameters."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    # ---- training ----

    def fit(
        self,
        dataset: Any,
        *,
        batch_size: int = 1,
        epochs: int = 1,
        eval_dataset: Any = None,
        eval_batch_size: int = 0,
        shuffle: bool | None = None,
        global_batch_size: int = 0,
        accumulate: int = 1,
        drop_last: bool = False,
        verbose: bool = True,
        **options: Any,
    ) -> list[Figures]:
        """Train for ``epochs`` epochs; a further call continues the training.

        Args:
            dataset: a dataset with ``__len__`` and ``__getitem__``, an ``IterableDataset``, or
                paths of data files. Its batches are tuples (features..., labels) or dicts with
                ``labels``.
            batch_size: number of records in a batch of each process.
            epochs: number of passes over the dataset.
            eval_dataset: dataset that is evaluated after each epoch.
            eval_batch_size: batch size of evaluations; 0: ``batch_size``.
            shuffle: whether records are shuffled; None: records are shuffled unless the dataset is
                an ``IterableDataset``.
            global_batch_size, accumulate, drop_last: see :meth:`Job.loader`.
            verbose: whether rank 0 prints a line for each epoch. A process that trains alone also
                shows a progress bar on a terminal.
            options: arguments of ``torch.utils.data.DataLoader``: ``num_workers``,
                ``collate_fn``, ...

        Returns:
            One dict for each epoch: ``epoch``, ``loss`` (mean over the records of all processes),
            ``eval_loss``, and ``eval_NAME`` for each metric.

        Raises:
            UsageError: an argument is invalid.
        """
        if epochs < 1:
            raise UsageError(f"epochs={epochs}: must be 1 or more")
        streamed = isinstance(dataset, IterableDataset)
        loader = self.job.loader(
            dataset,
            batch_size=batch_size,
            shuffle=not streamed if shuffle is None else shuffle,
            global_batch_size=global_batch_size,
            accumulate=accumulate,
            drop_last=drop_last,
            **options,
        )
        loader.passes = epochs
        eval_size = eval_batch_size or batch_size
        if eval_dataset is not None:
            evaluate.check(eval_dataset, eval_size, options)
        history: list[Figures] = []
        self._stopped = False
        self._tell("on_train_begin", self.model)
        for epoch in range(1, epochs + 1):
            self._tell("on_epoch_begin", epoch)
            start, name = time.monotonic(), f"{epoch}/{epochs}"
            batches = None if streamed else len(loader)
            with evaluate.progress_bar(name, batches, shown=verbose and is_plain()) as advance:
                trained = self._epoch(loader, advance)
                own = evaluate.trained_states(self.job)
                found = self._evaluate(eval_dataset, eval_size, options, own)
                figures = evaluate.epoch_figures(found)
                self._schedule.after_epoch(figures)
            if verbose and trained and self.job.is_main:
                evaluate.print_epoch(name, figures, time.monotonic() - start)
            history.append({"epoch": epoch, **figures})
            self._tell("on_epoch_end", epoch, figures)
            if self._callbacks and self._stops():
                break
        self._tell("on_train_end", self.model)
        return history

    def stop(self) -> None:
        """End :meth:`fit` in all processes after this epoch. A callback of any process may call
        this method."""
        self._stopped = True

    def _stops(self) -> bool:
        """Return True if any process has called :meth:`stop`."""

        def own(rank: int, world: int) -> bytes:
            return b"stop" if self._stopped else b""

        return bool(self.job.collect(own, any))

    def _epoch(self, loader: Loader, advance: Callable[[], None]) -> bool:
        """Train for one epoch; return True if this process trained a batch."""
        self.model.train()
        step, loss = self.job.step, None
        # An exception, such as an interrupt, closes the loop; the next pass starts a new one.
        with contextlib.closing(iter(loader)) as batches:
            for batch in batches:
                step = self._after_batch(step, loss)
                loss = self._step(batch)
                advance()
        self._after_batch(step, loss)
        return loss is not None

    def _step(self, batch: Any) -> torch.Tensor:
        given = self._batch(batch, self.device)
        self.optimizer.zero_grad()
        with self._autocast():
            loss = self._loss(given.labels, self._predict(given.features))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"loss returned {describe(loss)}; expected a scalar tensor: a mean")
        if self._scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            self._clip_gradients()
            self.optimizer.step()
        else:
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self._scaler.unscale_(self.optimizer)
            self._clip_gradients()
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self._schedule.after_update()
        self.job.log(loss=loss)
        return loss.detach()

    def _clip_gradients(self) -> None:
        if self._clip and self.job.sync_gradients:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)

    def _after_batch(self, step: int, loss: torch.Tensor | None) -> int:
        """Call ``on_batch_end`` if an update was completed since ``step``; return the current
        step."""
        now = self.job.step
        if loss is not None and now > step and self._told("on_batch_end"):
            self._tell("on_batch_end", now, float(loss))
        return now

    # ---- evaluation and prediction ----

    def evaluate(
        self,
        dataset: Any,
        *,
        batch_size: int = 1,
        **options: Any,
    ) -> Figures:
        """Compute ``loss`` and all metrics over a dataset; each process computes a part.

        All processes must call this method, outside of a loop over a loader. All processes get the
        same result.

        Args:
            dataset, batch_size, options: as for :meth:`fit`. Of ``num_workers`` processes, one
                reads an ``IterableDataset``, since each would read the whole.

        Raises:
            UsageError: the dataset is empty, or its batches have no labels.
        """
        found = self._evaluate(dataset, batch_size, options, [])
        if not found:
            raise UsageError("the dataset is empty")
        return found

    def predict(
        self,
        dataset: Any,
        *,
        batch_size: int = 1,
        **options: Any,
    ) -> Any:
        """Compute the predictions of all records, in the order of the dataset, on the CPU.

        All processes must call this method. Labels in the dataset are dropped: ``labels`` of a
        dict, and the last part of a tuple that has more parts than ``forward`` needs. For an
        ``IterableDataset`` rank 0 computes all predictions.

        Args:
            dataset, batch_size, options: as for :meth:`evaluate`.

        Returns:
            A tensor; a tuple or dict of tensors if the model returns a tuple or dict.

        Raises:
            UsageError: the dataset is empty, or the model returns something else.
        """
        inputs = required_inputs(self.model)

        def batches(rank: int, world: int) -> Iterator[Any]:
            if isinstance(dataset, IterableDataset):
                if rank:
                    return
                world = 1
            for batch in evaluate.part_of(dataset, rank, world, batch_size, options):
                yield moved(features_of(batch, inputs), self.device)

        with self._evaluating():
            return evaluate.predict(self.job, batches, self._call)

    def _evaluate(
        self,
        dataset: Any,
        batch_size: int,
        options: Mapping[str, Any],
        others: Sequence[pb.MetricState],
    ) -> Figures:
        def batches(rank: int, world: int) -> Iterator[Batch]:
            if dataset is None:
                return
            for batch in evaluate.part_of(dataset, rank, world, batch_size, options):
                yield self._batch(batch, self.device)

        with self._evaluating():
            return evaluate.evaluate(
                self.job, batches, self._predict, self._loss, self._metrics, others
            )

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self._autocast():
                yield
        finally:
            self.model.train(training)

    # ---- the model in a file ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ``state_dict`` of the model to a file; see :meth:`Job.save`."""
        self.job.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a ``state_dict`` that :meth:`save` wrote; all processes must call this method.

        The file is ignored in a process that joined late or was restored from a checkpoint: its
        model was trained after this call.

        Raises:
            UsageError: the suffix is unknown, or the file holds something else.
        """
        path = state_dict.checked(path)
        if not self.job.catching_up and not self.job.restored:
            self.model.load_state_dict(state_dict.read(path))

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self._dtype)

    def _told(self, event: str) -> bool:
        return any(hasattr(callback, event) for callback in self._callbacks)

    def _tell(self, event: str, *args: Any) -> None:
        for callback in self._callbacks:
            if hasattr(callback, event):
                getattr(callback, event)(*args)
