"""Gradients of a script that are not finite: the job fails, or leaves the update out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch_edl.data.batch import BatchError, split
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.pytorch.contract import TorchValues
from torch_edl.training.diagnostics import not_finite

log = logging.getLogger(__name__)

ON_NAN = ("stop", "skip")
_WITHOUT = (
    "leave such records out of the dataset, or replace the value (on_nan='skip' of "
    "torch_edl.init, or --on-nan skip, leaves out whole updates)"
)
_SKIP = "leave such updates out with on_nan='skip' of torch_edl.init, or --on-nan skip"


class NotFinite:
    """Handles updates whose gradients are not finite.

    Args:
        on_nan: ``stop``: raise NanLossError; ``skip``: log a warning and leave the update out.
        rank: returns the rank of this process.

    Raises:
        UsageError: ``on_nan`` has another value.
    """

    def __init__(self, on_nan: str, rank: Callable[[], int]) -> None:
        if on_nan not in ON_NAN:
            raise UsageError(f"on_nan={on_nan!r}: 'stop' or 'skip'")
        self._skips = on_nan == "skip"
        self.rank = rank
        """Returns the rank of this process."""

    def __call__(self, update: Update, minibatch: Minibatch, rank: int | None) -> None:
        """Handle an update.

        Args:
            minibatch: the last minibatch of this process in the update.
            rank: rank of the process whose gradients are not finite; None if there are several.

        Raises:
            NanLossError: the job must stop.
        """
        found, batch = "the gradients of several processes are not finite", Batch(None, None, 0)
        if rank is not None:
            records = "" if update.of_rank is None else f" ({update.of_rank(rank)})"
            found = f"the gradients of rank {rank} are not finite{records}"
            if rank == self.rank():
                batch = _labelled(minibatch)
        if not self._skips:
            raise not_finite(found, batch, TorchValues().array, without=_WITHOUT, skip=_SKIP)
        if rank == self.rank() or (rank is None and self.rank() == 0):
            log.warning("%s: this update is left out", found)


def _labelled(minibatch: Minibatch) -> Batch:
    """Split the batch of a script into features and labels, by which messages name its parts."""
    try:
        features, labels = split(minibatch.batch)
    except BatchError:
        features, labels = minibatch.batch, None
    return Batch(features, labels, minibatch.records)
