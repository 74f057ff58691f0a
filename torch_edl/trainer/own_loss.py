"""Models that compute their loss themselves where they are given labels, as those of Hugging Face
do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_edl.data.batch import Batch
from torch_edl.errors import UsageError
from torch_edl.trainer.inputs import labelled, moved
from torch_edl.trainer.step import describe


class OwnLoss:
    """The two parts of what such a model gives, where a loss of the user's would be called.

    Args:
        call: from a whole batch, with its labels, to what the model makes of it.
    """

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._outputs = call
        self._newest: torch.Tensor | None = None

    def call(self, features: Any) -> Any:
        """The predictions for features without labels."""
        return _predictions_of(self._outputs(features), with_loss=False)

    def predict(self, batch: Any) -> Any:
        """The predictions for a batch, whose loss is that of the next :meth:`loss`.

        Raises:
            UsageError: the model gave no loss.
        """
        output = self._outputs(batch)
        self._newest = _loss_of(output)
        return _predictions_of(output, with_loss=True)

    def loss(self, labels: Any, predictions: Any) -> torch.Tensor:
        """The loss of the batch that was predicted last."""
        newest, self._newest = self._newest, None
        assert newest is not None
        return newest


def whole(value: Any, device: torch.device) -> Batch:
    """A batch whose features are all of it, its labels too.

    Raises:
        UsageError: it has no labels.
    """
    batch = labelled(value, device)
    parts = tuple(value) if isinstance(value, list) else value
    return Batch(moved(parts, device), batch.labels, batch.size)


def _predictions_of(output: Any, *, with_loss: bool) -> Any:
    """Of what a model gave: ``logits`` where it has them, else all but the loss."""
    if isinstance(output, Mapping):
        rest = {key: value for key, value in output.items() if key != "loss"}
        return rest.get("logits", rest)
    logits = getattr(output, "logits", None)
    if logits is not None:
        return logits
    if type(output) in (tuple, list) and output:
        # Without labels there may be no loss; one logit of one record is none: it has dimensions.
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
