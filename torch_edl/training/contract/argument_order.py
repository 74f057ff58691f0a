"""The order in which a loss or a metric takes labels and predictions."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

from torch_edl.errors import UsageError

# Packages whose functions and modules all take (input, target).
_TORCHS = ("torch", "torchmetrics")

_LABELS = {"label", "labels", "target", "targets", "truth", "true", "gt", "actual"}
_PREDICTIONS = {"prediction", "predictions", "predicted", "pred", "preds", "hat"}
_PREDICTIONS |= {"logit", "logits", "score", "scores", "prob", "probs", "output", "outputs", "out"}
_PREDICTIONS |= {"input", "inputs"}
# Short words must match the whole name: y_pred and y_hat are no labels.
_SHORT_LABELS = {"y", "ys", "t"}
_SHORT_PREDICTIONS = {"yhat", "ypred", "yp", "p", "z"}


class LabelsFirst:
    """A function of (labels, predictions) that calls another function in the order of its
    parameters.

    Losses of torch take (input, target). For any other function the names of the first two
    parameters determine the order. If the names do not distinguish labels from predictions, a
    module is called in the order of torch, and a function in the documented order (labels,
    predictions).

    Attributes:
        name: name of the wrapped function.
        swapped: True if the wrapped function is called with (predictions, labels).
        reason: reason for this order, as a text for users.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        # torch.compile and torch.jit.script wrap functions of the user in classes of torch.
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
            self.swapped, self.reason = _decide(_parameters(function)[:2], of_module)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters of the wrapped function; empty if they are unknown."""
        return _parameters(self._function)

    @property
    def order(self) -> str:
        """The order of the arguments of the wrapped function, as a text."""
        return "(predictions, labels)" if self.swapped else "(labels, predictions)"

    def __call__(self, labels: Any, predictions: Any, **more: Any) -> Any:
        """Return the value of the wrapped function."""
        if self.swapped:
            return self._function(predictions, labels, **more)
        return self._function(labels, predictions, **more)


def labels_first(function: Callable[..., Any]) -> LabelsFirst:
    """Wrap a function in :class:`LabelsFirst`, unless it is wrapped already."""
    return function if isinstance(function, LabelsFirst) else LabelsFirst(function)


def called_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable whose signature has the parameters of a call: ``forward`` for a module of
    torch, ``call`` for an object of Keras, ``function`` itself otherwise."""
    if _is(function, "nn.Module"):
        function = function.forward  # type: ignore[attr-defined]
    elif not inspect.isroutine(function) and type(function).__module__.startswith("keras."):
        function = getattr(function, "call", function)
    return function


def _is(value: Any, *kinds: str) -> bool:
    """Return True if a value is an instance of a class of torch; False if torch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(
        value, tuple(operator.attrgetter(kind)(torch) for kind in kinds)
    )


def refuse_class(what: str, value: Any) -> None:
    """Raise UsageError if a loss or a metric is a class: ``nn.MSELoss`` instead of
    ``nn.MSELoss()``."""
    if isinstance(value, type):
        raise UsageError(
            f"{what} is the class {value.__name__}, which makes an object of (labels, "
            f"predictions) and no number; write {value.__name__}()"
        )


def _decide(names: list[str], of_module: bool) -> tuple[bool, str]:
    """Return True if predictions come first, and the reason for users."""
    first, second = (*map(_kind, names), "", "")[:2]
    shown = f"({', '.join(names)})"
    if first != second:
        return first == "predictions" or second == "labels", f"it takes {shown}"
    what = f"{shown} do not tell" if names else "its parameters have no names"
    return of_module, f"{what}; {'as modules of torch' if of_module else 'labels come first'}"


def _parameters(function: Any) -> list[str]:
    """Return the names of the positional parameters; empty if they are unknown."""
    if _is(function, "jit.ScriptFunction"):
        return [argument.name for argument in function.schema.arguments]
    try:
        found = inspect.signature(called_by(function)).parameters.values()
    except (TypeError, ValueError):  # a builtin may have none
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _kind(name: str) -> str:
    """Return ``labels`` or ``predictions``; empty if a name indicates neither, or both."""
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
