"""Predict the ids that a model looks up, without running the model.

The model of a model file is run up to its last embedding to find the ids of a minibatch. Dense
layers before that embedding (the bottom layers of DLRM) make this as expensive as their forward,
and the model of a script cannot be run at all. Most models, however, look up tensors of their
features or columns of them. :class:`IdPrediction` learns these parts from the first batches, and
reads the ids of later minibatches of the same layout directly. The real run of the model checks the
prediction: on a mismatch, the correct rows are pulled, and no further prediction is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_edl.nn.embedding import Table

_AGREE = 3
"""Number of minibatches of a layout that must agree before ids are predicted."""
_MOST = 8
"""Number of layouts to remember; ids of other layouts are not predicted."""

_Layout = tuple[bool, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]]
Lookup = tuple[Table, torch.Tensor]


class _View(NamedTuple):
    """A lookup whose ids are a part of a tensor of the features."""

    module: Table
    tensor: int
    offset: int
    """Offset in elements from the first element of the tensor."""
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the ids in a tensor of the layout."""
        start = int(tensor.storage_offset()) + self.offset
        return torch.as_strided(tensor, self.shape, self.stride, start)


class IdPrediction:
    """The learned lookups of one model."""

    def __init__(self) -> None:
        self._known: dict[_Layout, tuple[list[_View], int]] = {}
        self.is_over = False
        """True after a wrong prediction, which ends all predictions."""

    def learn(self, tensors: Sequence[torch.Tensor], training: bool, found: list[Lookup]) -> None:
        """Learn from the lookups of a run of the model, which has not changed ``tensors``.

        Args:
            tensors: tensors of the features, in their order.
            training: True if the model was in training mode.
            found: the lookups of the run.
        """
        layout = None if self.is_over else _layout(tensors, training)
        if layout is None or (layout not in self._known and len(self._known) == _MOST):
            return
        views = [view for lookup in found if (view := _view(tensors, lookup)) is not None]
        before, agreed = self._known.get(layout, (views, 0))
        if len(views) == len(found) and views == before:
            self._known[layout] = views, agreed + 1
        else:
            self.give_up()

    def find(self, tensors: Sequence[torch.Tensor], training: bool) -> list[Lookup] | None:
        """Predict the lookups of the model; None if only a run of the model can find them."""
        layout = None if self.is_over or not self._known else _layout(tensors, training)
        views, agreed = self._known.get(layout, ([], 0)) if layout is not None else ([], 0)
        if agreed < _AGREE:
            return None
        return [(view.module, view.of(tensors[view.tensor])) for view in views]

    def give_up(self) -> None:
        """End all predictions, after a lookup that was not predicted."""
        self.is_over = True
        self._known.clear()


def _layout(tensors: Sequence[torch.Tensor], training: bool) -> _Layout | None:
    if any(tensor.layout != torch.strided for tensor in tensors):
        return None
    return training, tuple((t.shape, t.stride(), t.dtype) for t in tensors)


def _view(tensors: Sequence[torch.Tensor], lookup: Lookup) -> _View | None:
    """Return the position of the ids in the features; None if the ids were computed."""
    module, ids = lookup
    for number, tensor in enumerate(tensors):
        if ids.dtype != tensor.dtype:
            continue
        moved = ids.device != tensor.device
        if not moved and not shares_memory(ids, tensor):
            continue
        # A tensor copied to another device has offset 0 there, and the same strides.
        begin = 0 if moved else int(tensor.storage_offset())
        offset = int(ids.storage_offset()) - begin
        if offset < 0 or offset + _extent(ids) > _extent(tensor):
            continue
        view = _View(module, number, offset, ids.shape, ids.stride())
        if not moved or torch.equal(view.of(tensor), ids.cpu()):
            return view
    return None


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors are views of the same storage, of any parts."""
    begin = one.untyped_storage().data_ptr()
    return begin != 0 and begin == other.untyped_storage().data_ptr()


def _extent(tensor: torch.Tensor) -> int:
    """Return the number of elements between the first and the last, both included."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
