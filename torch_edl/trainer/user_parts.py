"""What a user hands to the trainer: checked, and made uniform."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError

# Functions of these modules take (predictions, labels), and so do modules.
_TORCHS = ("torch.nn.functional", "torch._C", "torchmetrics.functional")
_PREDICTIONS = {"predictions", "prediction", "preds", "pred", "y_pred", "y_hat", "yhat"}
_PREDICTIONS |= {"logits", "scores", "outputs", "output", "input", "inputs"}


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


def in_our_order(what: str, function: Any) -> Callable[[Any, Any], Any]:
    """A function of (labels, predictions) from one in that order or in torch's.

    Raises:
        UsageError: the names of its arguments say that it is in the other order.
    """
    if not callable(function):
        raise UsageError(f"{what}: expected a function of (labels, predictions)")
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", None) or ""
    if isinstance(inner, nn.Module) or module.startswith(_TORCHS):
        return lambda labels, predictions: function(predictions, labels)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    if names and names[0].lower() in _PREDICTIONS:
        name = getattr(function, "__name__", what)
        raise UsageError(
            f"{what}: its arguments are ({', '.join(names[:2])}), but labels come first: "
            f"lambda labels, predictions: {name}(predictions, labels)"
        )
    made: Callable[[Any, Any], Any] = function
    return made


def check_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    if "loss" in metrics:
        raise UsageError("metrics: 'loss' is always there; choose another name")
    return {
        name: metric if hasattr(metric, "update") else in_our_order(f"metric {name!r}", metric)
        for name, metric in metrics.items()
    }


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
