"""The interface of strategies, and what all of them do to a minibatch."""

from __future__ import annotations

import fnmatch
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.contract import Contract
from torch_edl.data.batch import Batch
from torch_edl.data.loader import Window
from torch_edl.engine.not_finite import cause
from torch_edl.errors import EdlError, describe_error
from torch_edl.wire import master_pb2 as pb

layer_log = logging.getLogger("torch_edl.layers")

LOG_LAYERS_EVERY = 50


@dataclass(frozen=True)
class Committed:
    """A window whose gradients are in the model for good."""

    window: Window
    steps: int
    nan_steps: int
    loss: float
    """Of its last minibatch."""


class NanLossError(EdlError):
    """The loss of a minibatch is not finite, and the user wants to stop then."""


class UserCodeError(EdlError):
    """The user's model or loss raised; the exception is the cause."""


class Holder(Protocol):
    """What holds the model in this process, in training or not."""

    model: nn.Module

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """Within it the model is in evaluation mode and of one moment; gives the function from
        features to predictions."""
        ...

    def snapshot(self, directory: str) -> Snapshot:
        """Writes the model to the directory, where this process holds the model."""
        ...

    def close(self) -> None:
        """Lets go of connections; what is not committed is dropped."""
        ...


class Strategy(Holder, Protocol):
    """How a window of minibatches becomes an update of the model.

    Not thread-safe; the training loop owns it.
    """

    depth: int
    """How many windows beyond the one in training are worth prefetching."""

    def connect(self, cluster: pb.Cluster) -> None:
        """Meets the servers of today, or loads the checkpoint that the cluster names.

        Raises:
            ServersLostError: they cannot be reached.
            UsageError: they hold another model.
        """
        ...

    def committed(self, lease: pb.LeaseMessage) -> int:
        """How many records of a task, from its start, are in the model for good."""
        ...

    def prefetch(self, window: Window) -> None:
        """Says what :meth:`train` will be called with, in that order, at some later time."""
        ...

    def train(self, window: Window, retired_before: int) -> list[Committed]:
        """Trains on a window; returns those (this one, or earlier ones) that became committed.

        Raises:
            ServersLostError: nothing is known of what is not committed yet.
        """
        ...

    def finish(self) -> list[Committed]:
        """Waits until everything that was trained is committed."""
        ...


class Step:
    """One minibatch through the user's model: forward, loss, and the checks on both.

    Args:
        on_nan: ``stop`` raises :class:`NanLossError`, ``skip`` returns None.
        log_layers: glob over module names whose outputs are logged now and then.
    """

    def __init__(
        self, contract: Contract, model: nn.Module, *, on_nan: str, log_layers: str
    ) -> None:
        self._loss = contract.loss
        self._path = contract.path
        self._on_nan = on_nan
        self._model = model
        self.forward = caller(model)
        self._count = 0
        self.last_loss = math.nan
        if log_layers:
            self._watch(log_layers)

    def predict(self, features: Any) -> Any:
        """What the model says of a minibatch.

        Raises:
            UserCodeError: it raised.
        """
        try:
            return self.forward(features)
        except EdlError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"the model raised {describe_error(error)} (features {describe(features)})"
                + self._dtypes(error, features=features)
            ) from error

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """The gradient of what :meth:`loss` gave for a minibatch.

        Raises:
            UserCodeError: it raised.
        """
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise UserCodeError(
                f"backward raised {describe_error(error)}"
                + self._dtypes(error, features=batch.features, labels=batch.labels)
            ) from error

    def loss(self, batch: Batch) -> torch.Tensor | None:
        """The loss of a minibatch, a finite scalar; None if it is to be left out.

        Raises:
            UserCodeError: the user's code raised, or returned no scalar.
            NanLossError: the loss is not finite.
        """
        self._count += 1
        predictions = self.predict(batch.features)
        try:
            loss = self._loss(batch.labels, predictions)
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"loss raised {describe_error(error)} "
                f"(labels {describe(batch.labels)}, predictions {describe(predictions)})"
                + self._dtypes(error, labels=batch.labels)
            ) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UserCodeError(f"loss returned {describe(loss)}; expected a scalar tensor")
        self.last_loss = loss.item()
        if not math.isfinite(self.last_loss):
            if self._on_nan == "stop":
                why = cause(batch)
                advice = "mend the data" if why else "lower the learning rate, look at the data"
                raise NanLossError(
                    f"the loss is {self.last_loss}{': ' * bool(why)}{why}; {advice}, or leave such "
                    "minibatches out with --on-nan skip"
                )
            return None
        return loss

    def _dtypes(self, error: BaseException, **fed: Any) -> str:
        """What to do about numbers of float64, the type of numpy and of tables, where torch raised
        over types."""
        said = str(error).lower()
        known = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        if not ("dtype" in said or "double" in said) or torch.float64 in known:
            return ""
        wide = [name for name, value in fed.items() if "float64" in describe(value)]
        if not wide:
            return ""
        return (
            f"; feed returned {' and '.join(wide)} of float64, and the model computes in float32: "
            "convert them with .float()"
        )

    def _watch(self, pattern: str) -> None:
        found = [
            (n, m) for n, m in self._model.named_modules() if n and fnmatch.fnmatch(n, pattern)
        ]
        if not found:
            names = ", ".join(n for n, _ in self._model.named_modules() if n)
            layer_log.warning("--log-layers %s: no module matches; there are %s", pattern, names)
        for name, module in found:
            module.register_forward_hook(self._log_layer(name))

    def _log_layer(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not (module.training and isinstance(output, torch.Tensor)):
                return
            if self._count % LOG_LAYERS_EVERY == 1:
                values = output.detach().float()
                layer_log.info(
                    "step %d %s %s: mean %.4g std %.4g min %.4g max %.4g",
                    self._count,
                    name,
                    tuple(values.shape),
                    values.mean(),
                    values.std() if values.numel() > 1 else 0.0,
                    values.min(),
                    values.max(),
                )

        return hook


def describe(value: Any) -> str:
    """Shape and dtype of a tensor, the type of anything else: for messages."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list):
        return f"({', '.join(describe(v) for v in value)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {describe(v)}' for name, v in value.items())}}}"
    return type(value).__name__


def caller(model: nn.Module) -> Callable[[Any], Any]:
    """The function from the features of a minibatch to what the model makes of them: a tuple is
    unpacked unless ``forward`` takes a single argument, a dict becomes keyword arguments where
    the names fit."""
    unpack = _unpacks(model)

    def call(features: Any) -> Any:
        if isinstance(features, tuple) and unpack(features):
            return model(*features)
        if isinstance(features, Mapping) and unpack(features):
            return model(**features)
        return model(features)

    return call


def _unpacks(model: nn.Module) -> Callable[[Any], bool]:
    parameters = list(inspect.signature(model.forward).parameters.values())
    names = {p.name for p in parameters}
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def unpacks(features: Any) -> bool:
        if isinstance(features, Mapping):
            return keywords or set(features) <= names
        return several

    return unpacks
