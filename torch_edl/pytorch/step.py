"""The computation of one minibatch by the functions of a model file, and the errors of these
functions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_edl.data.batch import slice_tensors
from torch_edl.data.trees import leaves
from torch_edl.errors import EdlError, UserCodeError, describe_error
from torch_edl.interfaces import Batch, Engine
from torch_edl.pytorch.contract import Contract, TorchValues, describe
from torch_edl.training.contract.advice import advice
from torch_edl.training.diagnostics import LayerLog, not_finite, the_one


class Step:
    """Forward, loss and backward of the user's model on one minibatch, with checks.

    Args:
        on_nan: ``stop``: a loss that is not finite raises :class:`NanLossError`; ``skip``: the
            minibatch is left out.
        log_layers: glob pattern of the names of modules whose outputs are logged periodically.
        apart: returns a context in which ``feed`` draws no random numbers in another thread.
    """

    def __init__(
        self,
        contract: Contract,
        model: nn.Module,
        *,
        on_nan: str,
        log_layers: str,
        apart: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._loss = contract.loss
        self._path = contract.path
        self._on_nan = on_nan
        self._model = model
        self._apart = apart
        self._forward = caller(model)
        self.last_loss = math.nan
        """Loss of the last minibatch, finite or not; NaN before the first."""
        modules = {name: module for name, module in model.named_modules() if name}
        self._layers = LayerLog(log_layers, list(modules))
        for name in self._layers.watched:
            modules[name].register_forward_hook(self._log_layer(name))

    def forward(self, features: Any) -> Any:
        """Run the model on the features of a minibatch."""
        with self._apart():
            return self._forward(features)

    def predict(self, features: Any) -> Any:
        """Return the output of the model for the features of a minibatch.

        Raises:
            UserCodeError: the model raised.
        """
        try:
            return self.forward(features)
        except EdlError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"the model raised {describe_error(error)} (features {describe(features)})"
                + self._dtypes(error, features=features)
                + self._arguments(error, features)
                + self._ids(error, features)
                + advice(error)
            ) from error

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """Compute the gradients of a loss that :meth:`loss` returned.

        Args:
            batch: the minibatch, for messages.

        Raises:
            UserCodeError: the backward pass raised.
        """
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise UserCodeError(
                f"backward raised {describe_error(error)}"
                + self._dtypes(error, features=batch.features, labels=batch.labels)
            ) from error

    def loss(self, batch: Batch) -> torch.Tensor | None:
        """Return the loss of a minibatch, a finite scalar; None if the loss is not finite and
        ``on_nan`` is ``skip``.

        Raises:
            UserCodeError: user code raised, or did not return a scalar.
            NanLossError: the loss is not finite, and ``on_nan`` is ``stop``.
        """
        self._layers.count += 1
        predictions = self.predict(batch.features)
        try:
            loss = self._loss(batch.labels, predictions)
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"loss raised {describe_error(error)} "
                f"(labels {describe(batch.labels)}, predictions {describe(predictions)})"
                + self._dtypes(error, labels=batch.labels),
                self._the_one(batch, predictions),
            ) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UserCodeError(
                f"loss returned {describe(loss)}; expected a scalar tensor: write "
                'reduction="mean", or .mean()'
            )
        self.last_loss = loss.item()
        if not math.isfinite(self.last_loss):
            if self._on_nan == "stop":
                at = self._the_one(batch, predictions)
                raise not_finite(f"the loss is {self.last_loss}", batch, TorchValues().array, at)
            return None
        return loss

    def _the_one(self, batch: Batch, predictions: Any) -> int | None:
        """Return the index of the first sample whose loss fails or is not finite; None if no sample
        fails by itself, or all do."""

        def fails(index: int) -> bool:
            labels, predicted = (
                slice_tensors(each, index, index + 1, torch.from_numpy)
                for each in (batch.labels, predictions)
            )
            return not math.isfinite(self._loss(labels, predicted))

        with torch.no_grad():
            return the_one(batch.size, fails)

    def _arguments(self, error: BaseException, features: Any) -> str:
        """Return a hint if forward takes other arguments than the features; empty otherwise."""
        if not isinstance(error, TypeError) or "forward() " not in str(error):
            return ""
        known = inspect.signature(self._model.forward).parameters.values()
        wanted = [p.name for p in known if p.default is p.empty and "VAR" not in p.kind.name]
        if isinstance(features, Mapping):
            return f"; forward wants {', '.join(wanted)}, feed returned {', '.join(features)}"
        count = len(features) if isinstance(features, tuple) else 1
        s = "s" * (len(wanted) != 1)
        return f"; forward wants {len(wanted)} tensor{s}, feed returned {count}"

    def _ids(self, error: BaseException, features: Any) -> str:
        """Return the ids of a minibatch and the smallest embedding, if an id is outside of it;
        empty for other errors."""
        if not isinstance(error, IndexError) or "out of range in self" not in str(error):
            return ""
        parts = [leaf for _, leaf in leaves(features)]
        ids = [p for p in parts if isinstance(p, torch.Tensor) and not p.is_floating_point()]
        kinds = (nn.Embedding, nn.EmbeddingBag)
        rows = {n: m.num_embeddings for n, m in self._model.named_modules() if isinstance(m, kinds)}
        if not ids or not rows:
            return ""
        low, high = min(int(p.min()) for p in ids), max(int(p.max()) for p in ids)
        name = min(rows, key=lambda name: rows[name])
        return (
            f"; an id is outside an embedding: the integers of the minibatch are {low} to {high}, "
            f"and {name}, the smallest embedding, has the ids 0 to {rows[name] - 1}"
        )

    def _dtypes(self, error: BaseException, **fed: Any) -> str:
        """Return a hint if torch raised because of labels that are no integers, or of float64
        tensors, the default type of numpy and of tables; empty otherwise."""
        said = str(error).lower()
        known = {p.dtype for p in self._model.parameters() if p.is_floating_point()}
        if "long" in said and "float" in describe(fed.get("labels")):
            return "; the loss expects class numbers: convert the labels with .long()"
        if not ("dtype" in said or "double" in said) or torch.float64 in known:
            return ""
        wide = [name for name, value in fed.items() if "float64" in describe(value)]
        if not wide:
            return ""
        return (
            f"; feed returned {' and '.join(wide)} of float64, and the model computes in float32: "
            "convert them with .float()"
        )

    def _log_layer(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if module.training and isinstance(output, torch.Tensor) and self._layers.due:
                values = output.detach().float()
                spread = values.std().item() if values.numel() > 1 else 0.0
                low, high = (end.item() for end in values.aminmax())
                self._layers.log(name, values.shape, values.mean().item(), spread, low, high)

        return hook


def contract_body(
    step: Step, engine: Engine, optimizer: torch.optim.Optimizer, scheduler: Any | None
) -> Callable[[Batch], float]:
    """Return the body of the training loop of a model file: a function that computes a minibatch
    and returns its loss; NaN if the minibatch gave no gradient.

    Raises (the body):
        UserCodeError: user code raised.
        NanLossError: the loss is not finite, and the job is configured to stop in this case.
    """

    def body(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = step.loss(batch) if batch.size else None
        if engine.backward(None if loss is None else partial(step.backward, loss, batch)):
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return math.nan if loss is None else step.last_loss

    return body


def caller(model: nn.Module) -> Callable[[Any], Any]:
    """Return a function from the features of a minibatch to the output of the model.

    A tuple is unpacked unless ``forward`` takes a single argument. A dict is passed as keyword
    arguments if ``forward`` has parameters of all its names, and as one argument otherwise.
    """
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
