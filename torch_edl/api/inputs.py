"""Conversion of a batch of a DataLoader to the arguments of a model and a loss, also for models
that compute their own loss from labels, as those of Hugging Face do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from torch_edl.data.batch import LABEL_KEYS, BatchError, length, split
from torch_edl.data.trees import is_tensor, transform
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch
from torch_edl.pytorch.contract import describe


def labelled(value: Any, device: torch.device) -> Batch:
    """Split a batch into features and labels, on the device.

    Raises:
        UsageError: the batch has no labels.
    """
    try:
        features, labels = split(value)
        size = length(labels if isinstance(labels, torch.Tensor) and labels.ndim else features)
    except BatchError as error:
        raise UsageError(f"a batch of the dataset is {error}") from None
    return Batch(moved(features, device), moved(labels, device), size)


def moved(value: Any, device: torch.device) -> Any:
    """Return a tree with all its tensors on the device; other leaves are unchanged."""

    def on_device(leaf: Any) -> Any:
        moves = is_tensor(leaf) and hasattr(leaf, "to")
        return leaf.to(device, non_blocking=True) if moves else leaf

    return transform(value, on_device)


def required_inputs(model: nn.Module) -> int:
    """Return the number of positional parameters of ``forward`` without a default; at least 1."""
    found = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return max(1, len(found))


def features_of(value: Any, inputs: int) -> Any:
    """Return the features of a batch without its labels.

    A dict loses the keys of labels. A tuple with more than ``inputs`` parts loses its last part.
    """
    if isinstance(value, Mapping):
        return {key: part for key, part in value.items() if key not in LABEL_KEYS}
    if not isinstance(value, tuple | list):
        return value
    parts = tuple(value) if len(value) <= inputs else tuple(value[:-1])
    return parts[0] if len(parts) == 1 else parts


class OwnLoss:
    """Separates the loss from the predictions in the output of a model that computes its own loss.

    Args:
        call: function from a batch, with or without labels, to the output of the model.
    """

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._outputs = call
        self._newest: torch.Tensor | None = None

    def call(self, features: Any) -> Any:
        """Return the predictions for features without labels."""
        return _predictions_of(self._outputs(features), with_loss=False)

    def predict(self, batch: Any) -> Any:
        """Return the predictions for a batch with labels; the next :meth:`loss` returns its loss.

        Raises:
            UsageError: the output of the model has no loss.
        """
        output = self._outputs(batch)
        self._newest = _loss_of(output)
        return _predictions_of(output, with_loss=True)

    def loss(self, labels: Any, predictions: Any) -> torch.Tensor:
        """Return the loss of the last predicted batch; the arguments are ignored."""
        newest, self._newest = self._newest, None
        assert newest is not None
        return newest


def whole(value: Any, device: torch.device) -> Batch:
    """Return a batch on the device whose features include the labels.

    Raises:
        UsageError: the batch has no labels.
    """
    batch = labelled(value, device)
    parts = tuple(value) if isinstance(value, list) else value
    return Batch(moved(parts, device), batch.labels, batch.size)


def _predictions_of(output: Any, *, with_loss: bool) -> Any:
    """Return the ``logits`` of a model's output if it has any, else all parts but the loss."""
    if isinstance(output, Mapping):
        rest = {key: value for key, value in output.items() if key != "loss"}
        return rest.get("logits", rest)
    logits = getattr(output, "logits", None)
    if logits is not None:
        return logits
    if type(output) in (tuple, list) and output:
        # An output without labels may have no loss. A scalar is a loss only without dimensions:
        # a single logit of a single record has dimensions.
        begins = with_loss or (_is_scalar(output[0]) and not output[0].dim())
        rest = output[1:] if begins else output
        return rest[0] if len(rest) == 1 else tuple(rest)
    return output


def _loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, tuple | list) and output:
        loss = output[0]
    else:
        loss = getattr(output, "loss", output)
    if not _is_scalar(loss):
        raise UsageError(
            f"loss=None: the model gave {describe(output)}; expected its loss as `.loss`, under "
            "'loss', as the first of a tuple, or alone: a scalar tensor; or pass a loss"
        )
    assert isinstance(loss, torch.Tensor)
    return loss


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1
