"""Checks of the objects that a user passes to the trainer or to ``prepare``, and hooks that tie
these objects to the updates of the job."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import check_shared
from torch_edl.pytorch import torch_internals
from torch_edl.training.contract.argument_order import LabelsFirst, labels_first, refuse_class
from torch_edl.training.contract.functions import UserMetric

log = logging.getLogger(__name__)

_SEVERAL_MODELS = (
    "give several models, as those of a GAN, as one: job.prepare(nn.ModuleList([generator, "
    "discriminator]), [optimizer_g, optimizer_d])"
)


def check_parts(model: Any, optimizers: Sequence[Any]) -> None:
    """Check the type of the model and of its optimizers.

    Raises:
        UsageError: an argument has the wrong type, or the model is wrapped, sharded or without
            values; or an optimizer trains parameters that are not part of the model.
    """
    if isinstance(model, list | tuple):
        raise UsageError(f"model: {_SEVERAL_MODELS}")
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, not {type(model).__name__}")
    _check_whole(model)
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
            several = f"; {_SEVERAL_MODELS}" if isinstance(optimizer, nn.Module) else ""
            raise UsageError(
                f"optimizer: expected an object such as torch.optim.Adam(model.parameters()), "
                f"not {name}{several}"
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = [p for p in parameters if id(p) not in own]
        if len(foreign) == len(parameters):
            raise UsageError(
                "optimizer: it has none of the parameters of this model; make it from "
                "model.parameters(), after the model"
            )
        if foreign:
            raise UsageError(
                f"optimizer: {type(optimizer).__name__} trains a parameter of shape "
                f"{tuple(foreign[0].shape)} that the model does not have; it would differ "
                "from process to process; make it part of the model (one nn.Module of all)"
            )


def _check_whole(model: nn.Module) -> None:
    """Raise UsageError unless this process has all values of the model, and no module sums the
    gradients."""
    for path, module in model.named_modules():
        if torch_internals.sums_gradients(module):
            raise UsageError(
                f"model: {path or 'it'} is a {type(module).__name__}, which exchanges gradients or "
                "parameters by itself, and the job sums the gradients; pass the model itself "
                "(wrapper.module), or run the script without torch_edl: torch-edl run starts it as "
                "torchrun does"
            )
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if torch_internals.is_sharded(value):
            raise UsageError(
                f"model: the parameter {name} is sharded (DTensor, fully_shard), and each process "
                "of a job holds the whole model; run the script without torch_edl: torch-edl run "
                "starts it as torchrun does, and restarts it after failures"
            )
        if value.is_meta:
            raise UsageError(
                f"model: {name} is on the device meta, without values; give it values before "
                "prepare(): model.to_empty(device=...), then initialize or load the model"
            )


def check_several(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise UsageError if several processes cannot train the model in step."""
    check_shared(model)
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
            raise UsageError(
                f"optimizer: {type(optimizer).__name__} cannot be run by several processes in "
                "step: gradients are summed densely, and once for each batch; use another optimizer"
            )


def warn_of_several(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Log a warning if a process that trains alone uses what several processes refuse."""
    try:
        check_several(model, optimizers)
    except UsageError as error:
        log.warning("this process trains alone; a job of several processes refuses: %s", error)


def check_summed(model: nn.Module) -> None:
    """Raise UsageError if the model has a table of ``torch_edl.nn``, which rings do not share."""
    for path, module in model.named_modules():
        if isinstance(module, Table):
            raise UsageError(
                f"{path or 'the model'}: rows of torch_edl.nn embeddings are not summed over a "
                "ring; use --strategy ps, or torch.nn.Embedding"
            )


def check_companions(scheduler: Any, scaler: Any) -> list[Any]:
    """Return the schedulers as a list.

    Args:
        scheduler: a scheduler, a list of them, or None.
        scaler: a gradient scaler, or None.

    Raises:
        UsageError: an argument has the wrong type.
    """
    given = [] if scheduler is None else [scheduler]
    schedulers = list(scheduler) if isinstance(scheduler, list | tuple) else given
    for each in schedulers:
        is_other = isinstance(each, torch.optim.Optimizer) or hasattr(each, "unscale_")
        if is_other or not (hasattr(each, "step") and hasattr(each, "state_dict")):
            raise UsageError(
                f"scheduler: expected a scheduler such as torch.optim.lr_scheduler.StepLR, not "
                f"{type(each).__name__}; write prepare(model, [first, second]) for several "
                "optimizers, and prepare(model, optimizer, scaler=scaler) for a scaler"
            )
    if scaler is not None and not all(hasattr(scaler, m) for m in ("scale", "unscale_", "step")):
        raise UsageError(
            f"scaler: expected a torch.amp.GradScaler, not {type(scaler).__name__}; write "
            "prepare(model, optimizer, scheduler, scaler)"
        )
    return schedulers


def check_state(state: Any) -> dict[str, Any]:
    """Return the further objects of a script by name.

    Raises:
        UsageError: an object has no ``state_dict`` or ``load_state_dict``.
    """
    if state is not None and not isinstance(state, Mapping):
        raise UsageError(f"state=: expected a dict such as {{'ema': ema}}, not {state!r:.60}")
    for name, part in (state or {}).items():
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)):
                raise UsageError(
                    f"state=: {name!r}: {type(part).__name__} has no {method}(), by which other "
                    "processes and checkpoints get its state"
                )
    return {str(name): part for name, part in (state or {}).items()}


def check_schedule(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise UsageError if an optimizer has a scheduler; called if ``prepare`` received none.

    The job must know a scheduler in order to restore its state in processes that join late and from
    checkpoints, and to skip its steps in repeated batches.
    """
    for optimizer in optimizers:
        if torch_internals.has_scheduler(optimizer):
            raise UsageError(
                f"{type(optimizer).__name__} has a scheduler of learning rates that the job does "
                "not know, so that its state would differ from process to process; make it before "
                "and write job.prepare(model, optimizer, scheduler), or ElasticTrainer(..., "
                "scheduler=scheduler)"
            )


def check_tables(model: nn.Module) -> None:
    """Raise UsageError if the model has a table of ``torch_edl.nn``, which a checkpoint of this
    process would not contain."""
    for path, module in model.named_modules():
        if isinstance(module, Table):
            raise UsageError(
                f"checkpoint_dir: rows of {path or 'the model'} ({type(module).__name__} of "
                "torch_edl.nn) are in the checkpoints of parameter servers only; run the script "
                "with torch-edl run, or keep the model with job.save(path)"
            )


def move(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device | str) -> None:
    """Move the model to a device, before the optimizer has a state.

    Args:
        device: a device; ``"auto"``: the GPU for ``LOCAL_RANK``, or the CPU without a GPU.

    Raises:
        UsageError: the optimizer has a state.
    """
    if device == "auto":
        device = "cpu"
        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", "0"))
            device = f"cuda:{local % torch.cuda.device_count()}"
    if optimizer.state:
        raise UsageError("device=: the optimizer has a state already; move the model before it")
    model.to(device)


def check_function(what: str, function: Any) -> LabelsFirst:
    """Return a user's loss or metric as a function of (labels, predictions).

    Args:
        what: name of the function in messages.

    Raises:
        UsageError: ``function`` is not callable, or is a class.
    """
    if not callable(function):
        raise UsageError(
            f"{what}: expected a function of (labels, predictions), not {type(function).__name__}"
        )
    refuse_class(what, function)
    return labels_first(function)


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics as a dict.

    Raises:
        UsageError: a metric is a class or not callable, or has the name ``loss``.
    """
    if "loss" in metrics:
        raise UsageError("metrics: 'loss' is always there; choose another name")
    for name, metric in metrics.items():
        refuse_class(f"metric {name!r}", metric)
        if not hasattr(metric, "update"):
            check_function(f"metric {name!r}", metric)
    return dict(metrics)


def fresh_metrics(metrics: Mapping[str, Any], device: torch.device) -> dict[str, UserMetric]:
    """Return the metrics on the device; objects are replaced by copies without a state."""
    made = {}
    for name, metric in metrics.items():
        if hasattr(metric, "update"):
            metric = copy.deepcopy(metric)
            metric.reset()
            if isinstance(metric, nn.Module):
                metric = metric.to(device)
        made[name] = UserMetric(metric)
    return made


def forbid_lone_steps(
    optimizers: Sequence[torch.optim.Optimizer], counts: Callable[[], bool], *, alone: bool
) -> None:
    """Make ``optimizer.step()`` raise UsageError if only the model of this process would change.

    Args:
        counts: returns True while a step is allowed: it belongs to an update of the job, or has no
            effect.
        alone: True if no other process trains the model; a warning is logged once instead.
    """
    warned = False

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal warned
        if warned or counts():
            return
        if any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
            text = (
                "optimizer.step() outside of a loop over job.loader(): the model of this process "
                "would part from that of the others; write `for batch in job.loader(dataset, "
                "batch_size=...)` in the place of the DataLoader"
            )
            if not alone:
                raise UsageError(text)
            warned = True
            log.warning("this process trains alone; a job of several processes refuses: %s", text)

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(check)


_UPDATES = ("update_parameters", "update", "step")


def gate_steps(
    schedulers: Sequence[Any], scaler: Any, state: Mapping[str, Any], engine: RingEngine
) -> None:
    """Make schedulers, a scaler and further objects act only when the current update changes the
    model: not for an accumulated batch, nor after the ring broke, nor while the process catches up.

    A scaler may skip the step of the optimizer, so its call of ``step`` is reported to the engine.

    Args:
        scaler: gradient scaler; None: none.
        state: further objects by name. Their methods ``update_parameters``, ``update`` and
            ``step`` are those that averages of torch and other packages have.
    """

    def is_live() -> bool:
        return engine.live

    for scheduler in schedulers:
        torch_internals.gate(scheduler, ("step",), is_live)
    for part in state.values():
        names = tuple(name for name in _UPDATES if callable(getattr(part, name, None)))
        torch_internals.gate(part, names, is_live)
    if scaler is not None:
        torch_internals.before_step(scaler, engine.stepped)
        torch_internals.gate(scaler, ("step", "update", "unscale_"), is_live)


class Schedule:
    """A scheduler and its interval; see :class:`torch_edl.ElasticTrainer`.

    Raises:
        UsageError: the interval is unknown, or the scheduler does not support it.
    """

    def __init__(self, scheduler: Any, interval: str) -> None:
        if interval not in ("step", "epoch"):
            raise UsageError(f"scheduler_interval={interval!r}: 'step' or 'epoch'")
        self._judges = isinstance(scheduler, ReduceLROnPlateau)
        if self._judges and interval == "step":
            raise UsageError(
                "scheduler=ReduceLROnPlateau(...): it judges the loss of an epoch, but "
                "scheduler_interval is 'step'; write scheduler_interval='epoch'"
            )
        self._scheduler = scheduler
        self._interval = interval

    def check_servers(self) -> None:
        """Raise UsageError if the scheduler steps by epoch, which parameter servers cannot do."""
        if self._scheduler is not None and self._interval == "epoch":
            raise UsageError(
                "scheduler_interval='epoch': on parameter servers the updates of all processes "
                "drive the scheduler; use 'step', with as many steps as an epoch has"
            )

    def after_update(self) -> None:
        """Step the scheduler after an update if its interval is ``step``."""
        if self._scheduler is not None and self._interval == "step":
            self._scheduler.step()

    def after_epoch(self, figures: Mapping[str, float]) -> None:
        """Step the scheduler at the end of an epoch.

        Args:
            figures: figures of the epoch. They must be the same in all processes; otherwise the
                learning rates of the processes would differ.
        """
        if self._scheduler is None or self._interval != "epoch":
            return
        if not self._judges:
            self._scheduler.step()
            return
        loss = figures.get("eval_loss", figures.get("loss"))
        if loss is not None:  # a job that resumes at the end of an epoch has no loss
            self._scheduler.step(loss)
