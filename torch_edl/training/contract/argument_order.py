"""In which order a loss or a metric takes labels and predictions: decided here and nowhere else."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

from torch_edl.errors import UsageError

# Packages whose functions and modules take (input, target) throughout.
_TORCHS = ("torch", "torchmetrics")

_LABELS = {"label", "labels", "target", "targets", "truth", "true", "gt", "actual"}
_PREDICTIONS = {"prediction", "predictions", "predicted", "pred", "preds", "hat"}
_PREDICTIONS |= {"logit", "logits", "score", "scores", "prob", "probs", "output", "outputs", "out"}
_PREDICTIONS |= {"input", "inputs"}
# What is short counts only as the whole of a name: y_pred and y_hat are no labels.
_SHORT_LABELS = {"y", "ys", "t"}
_SHORT_PREDICTIONS = {"yhat", "ypred", "yp", "p", "z"}


class LabelsFirst:
    """A function of (labels, predictions), whatever the order of the function inside.

    torch's own losses take (input, target). Any other function is called by the names of its first
    two parameters where they tell labels from predictions; where they do not, a module is called
    in torch's order and a function in the documented one, (labels, predictions).

    Attributes:
        name: of the function inside.
        swapped: the function inside is called with (predictions, labels).
        reason: why, for a person.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # torch.compile and torch.jit.script wrap what the user wrote in classes of torch.
        function = getattr(function, "_orig_mod", function)
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        inner = inspect.unwrap(inner)
        named = inner if hasattr(inner, "__name__") else type(inner)
        is_scripted = _is(inner, "jit.ScriptFunction", "jit.ScriptModule")
        self.name = str(named.__name__)
        package = (named.__module__ or "").partition(".")[0]
        if package in _TORCHS and not is_scripted:
            self.swapped, self.reason = True, f"the order of {package}"
        else:
            of_module = _is(getattr(inner, "__self__", inner), "nn.Module")
            self.swapped, self.reason = _decide(_parameters(function), of_module)

    @property
    def order(self) -> str:
        """The order in which the function inside is called."""
        return "(predictions, labels)" if self.swapped else "(labels, predictions)"

    def __call__(self, labels: Any, predictions: Any) -> Any:
        """What the function inside makes of them."""
        if self.swapped:
            return self._function(predictions, labels)
        return self._function(labels, predictions)


def labels_first(function: Callable[..., Any]) -> LabelsFirst:
    """``function`` as one of (labels, predictions); as it is if it is known to be one."""
    return function if isinstance(function, LabelsFirst) else LabelsFirst(function)


def called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """What has the parameters of a call: the signature of a module of torch, and of a layer or a
    loss of Keras, takes anything."""
    if _is(function, "nn.Module"):
        function = function.forward  # type: ignore[attr-defined]
    elif not inspect.isroutine(function) and type(function).__module__.startswith("keras."):
        function = getattr(function, "call", function)
    return function


def _is(value: Any, *kinds: str) -> bool:
    """Whether a value is of a class of torch. Where torch was not imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(
        value, tuple(operator.attrgetter(kind)(torch) for kind in kinds)
    )


def refuse_class(what: str, value: Any) -> None:
    """For a loss or a metric that nobody has called: ``nn.MSELoss`` instead of ``nn.MSELoss()``.

    Raises:
        UsageError: it is a class.
    """
    if isinstance(value, type):
        raise UsageError(
            f"{what} is the class {value.__name__}, which makes an object of (labels, "
            f"predictions) and no number; write {value.__name__}()"
        )


def _decide(names: list[str], of_module: bool) -> tuple[bool, str]:
    """Whether predictions come first, and why."""
    first, second = (*map(_kind, names), "", "")[:2]
    shown = f"({', '.join(names)})"
    if first != second:
        return first == "predictions" or second == "labels", f"it takes {shown}"
    what = f"{shown} do not tell" if names else "its parameters have no names"
    return of_module, f"{what}; {'as modules of torch' if of_module else 'labels come first'}"


def _parameters(function: Any) -> list[str]:
    """The names of the first two parameters that can be given by position."""
    if _is(function, "jit.ScriptFunction"):
        return [argument.name for argument in function.schema.arguments][:2]
    try:
        found = inspect.signature(called_by(function)).parameters.values()
    except (TypeError, ValueError):  # a builtin may have none
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:2]


def _kind(name: str) -> str:
    """``labels``, ``predictions``, or an empty string where the name says neither, or both."""
    name = name.lower().strip("_")
    if name in _SHORT_LABELS:
        return "labels"
    if name in _SHORT_PREDICTIONS:
        return "predictions"
    parts = set(re.split(r"[_\d]+", name))
    labels, predictions = bool(parts & _LABELS), bool(parts & _PREDICTIONS)
    if labels == predictions:
        return ""
    return "labels" if labels else "predictions"
