"""Which ids a model looks up, without running it: where they are plainly parts of its features.

The model of a model file is run up to its last embedding to find the ids of a minibatch. Where
there are dense layers before that (the bottom layers of DLRM), it costs as much as their forward;
and the model of a script is not ours to run. But most models look up tensors of their features, or
columns of them. :class:`PlainIds` learns in the first minibatches which, and takes them from the
next ones of the same layout. The model's real run says whether they were the right ones: of those
that were not, rows are pulled then, and nothing is taken for granted any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_edl.nn.embedding import Table

_AGREE = 3
"""Minibatches of a layout that must agree before the model is not run for the next."""
_MOST = 8
"""Layouts that are remembered; others are as if the ids were computed."""

_Layout = tuple[bool, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]]
Lookup = tuple[Table, torch.Tensor]


class _View(NamedTuple):
    """A lookup of ids that lie in a tensor of the features."""

    module: Table
    tensor: int
    offset: int
    """In elements, from the first of that tensor."""
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ids in a tensor of the layout."""
        start = int(tensor.storage_offset()) + self.offset
        return torch.as_strided(tensor, self.shape, self.stride, start)


class PlainIds:
    """What was learned of one model."""

    def __init__(self) -> None:
        self._known: dict[_Layout, tuple[list[_View], int]] = {}
        self.is_over = False
        """It was given up."""

    def learn(self, tensors: Sequence[torch.Tensor], training: bool, found: list[Lookup]) -> None:
        """Takes what a run of the model looked up; none of ``tensors`` was changed by it.

        Args:
            tensors: those of the features, in their order.
            training: whether the model was in training mode.
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
        """What the model is going to look up; None: only a run of it can say that."""
        layout = None if self.is_over or not self._known else _layout(tensors, training)
        views, agreed = self._known.get(layout, ([], 0)) if layout is not None else ([], 0)
        if agreed < _AGREE:
            return None
        return [(view.module, view.of(tensors[view.tensor])) for view in views]

    def give_up(self) -> None:
        """The model looked up something else than what was found."""
        self.is_over = True
        self._known.clear()


def _layout(tensors: Sequence[torch.Tensor], training: bool) -> _Layout | None:
    if any(tensor.layout != torch.strided for tensor in tensors):
        return None
    return training, tuple((t.shape, t.stride(), t.dtype) for t in tensors)


def _view(tensors: Sequence[torch.Tensor], lookup: Lookup) -> _View | None:
    """Where the ids lie in the features; None: they were computed."""
    module, ids = lookup
    for number, tensor in enumerate(tensors):
        if ids.dtype != tensor.dtype:
            continue
        moved = ids.device != tensor.device
        if not moved and not shares_memory(ids, tensor):
            continue
        # A tensor that was moved to another device begins there at 0, and lies there as here.
        begin = 0 if moved else int(tensor.storage_offset())
        offset = int(ids.storage_offset()) - begin
        if offset < 0 or offset + _extent(ids) > _extent(tensor):
            continue
        view = _View(module, number, offset, ids.shape, ids.stride())
        if not moved or torch.equal(view.of(tensor), ids.cpu()):
            return view
    return None


def shares_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage, of whichever parts."""
    begin = one.untyped_storage().data_ptr()
    return begin != 0 and begin == other.untyped_storage().data_ptr()


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, with what is in between."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
