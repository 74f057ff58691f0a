"""What ``prepare`` does to the parts of a script: checks them, and ties them to the updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table


def check_parameters(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], *, alone: bool
) -> None:
    """Raises UsageError if an optimizer trains what is not part of the model, or cannot be run in
    step with those of other processes."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not alone and isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
            raise UsageError(
                f"prepare(): {type(optimizer).__name__} cannot be run by several processes in "
                "step: gradients are summed densely, and once for each batch; use another optimizer"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in own:
                    raise UsageError(
                        f"prepare(): {type(optimizer).__name__} trains a parameter of shape "
                        f"{tuple(parameter.shape)} that the model does not have; it would differ "
                        "from process to process; make it part of the model (one nn.Module of all)"
                    )


def check_tables(model: nn.Module) -> None:
    """Raises UsageError if a checkpoint of this process would lack a part of the model."""
    for path, module in model.named_modules():
        if isinstance(module, Table):
            raise UsageError(
                f"checkpoint_dir: rows of {path or 'the model'} ({type(module).__name__} of "
                "torch_edl.nn) are in the checkpoints of parameter servers only; run the script "
                "with torch-edl run, or keep the model with job.save(path)"
            )


def gate_scaler(scaler: Any, engine: RingEngine) -> None:
    """See :func:`gate`; a scaler may leave the optimizer's step out."""
    step = scaler.step

    def noted(*args: Any, **kwargs: Any) -> Any:
        engine.stepped()
        return step(*args, **kwargs)

    scaler.step = noted
    gate(scaler, ("step", "update", "unscale_"), engine)


def gate(part: Any, names: tuple[str, ...], engine: RingEngine) -> None:
    """Makes methods act only when the update does that they belong to."""
    for name in names:
        setattr(part, name, _gated(getattr(part, name), engine))
    # The state of a scheduler is all that it has as attributes.
    state_dict, hidden = part.state_dict, {*names, "state_dict"}
    part.state_dict = lambda: {k: v for k, v in state_dict().items() if k not in hidden}


def _gated(method: Callable[..., Any], engine: RingEngine) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) if engine.live else None

    return call
