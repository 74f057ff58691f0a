"""What a user hands to the trainer: checked, and made uniform."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torch_edl.argument_order import LabelsFirst, labels_first, refuse_class
from torch_edl.errors import UsageError


def check_parts(model: Any, optimizer: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        name = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise UsageError(
            f"optimizer: expected an object such as torch.optim.Adam(model.parameters()), "
            f"not {name}"
        )
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise UsageError(
            "optimizer: it has none of the parameters of this model; make it from "
            "model.parameters(), after the model"
        )


def move(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device | str) -> None:
    if device == "auto":
        device = "cpu"
        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", "0"))
            device = f"cuda:{local % torch.cuda.device_count()}"
    if optimizer.state:
        raise UsageError("device=: the optimizer has a state already; move the model before it")
    model.to(device)


def check_loss(loss: Any) -> LabelsFirst:
    """The user's loss as a function of (labels, predictions).

    Raises:
        UsageError: it cannot be called, or is a class.
    """
    return _check_function("loss", loss)


def _check_function(what: str, function: Any) -> LabelsFirst:
    if not callable(function):
        raise UsageError(
            f"{what}: expected a function of (labels, predictions), not {type(function).__name__}"
        )
    refuse_class(what, function)
    return labels_first(function)


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    if "loss" in metrics:
        raise UsageError("metrics: 'loss' is always there; choose another name")
    for name, metric in metrics.items():
        refuse_class(f"metric {name!r}", metric)
        if not hasattr(metric, "update"):
            _check_function(f"metric {name!r}", metric)
    return dict(metrics)


def fresh_metrics(metrics: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The same metrics; objects as copies that have counted nothing."""
    made = {}
    for name, metric in metrics.items():
        if hasattr(metric, "update"):
            metric = copy.deepcopy(metric)
            metric.reset()
            if isinstance(metric, nn.Module):
                metric = metric.to(device)
        made[name] = metric
    return made
