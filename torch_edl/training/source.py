"""Where the updates of a training loop come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch_edl.data.batch import Update
from torch_edl.errors import DismissedError


class UpdateSource(Protocol):
    """Where updates come from: the leases of this process, or the position of a ring."""

    def updates(self) -> Iterator[Update]:
        """The updates of this pass. Between two of them the source does whatever else is due.

        Raises:
            DismissedError: the job continues without this process.
        """
        ...

    def after(self, update: Update, *, counted: bool) -> None:
        """The update was committed; or, not counted, its records come again."""
        ...

    def recover(self, update: Update, error: BaseException) -> None:
        """The update failed with ``error``: raises it, or sees to it that its records come again
        or are reported."""
        ...

    def leave(self) -> bool:
        """The body left its loop; true if the update that was open counts all the same."""
        ...


class FileSource(UpdateSource, Protocol):
    """The source of a model file, which goes through all of the job's data."""

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Whether this process is to write the model; the master says whether there is one.

        Args:
            dismissed: why this process leaves before the end, if it does.
        """
        ...

    def close(self) -> None:
        """Leases and reports no more."""
        ...
