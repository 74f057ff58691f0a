"""Interfaces of the sources of updates for the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch_edl.errors import DismissedError
from torch_edl.interfaces import Update


class UpdateSource(Protocol):
    """A source of updates: the leased tasks of this process, or the position of a ring."""

    def updates(self) -> Iterator[Update]:
        """Yield the updates of this pass. Between two updates the source executes other tasks.

        Raises:
            DismissedError: the job continues without this process.
        """
        ...

    def after(self, update: Update, *, counted: bool) -> None:
        """Handle the end of an update.

        Args:
            counted: True if the update is in the model; False if its records are trained again.
        """
        ...

    def recover(self, update: Update, error: BaseException) -> None:
        """Handle an update that failed: raise ``error``, schedule the records again, or report
        the task as failed."""
        ...

    def leave(self) -> bool:
        """Handle a body that left its loop; return True if the current update counts."""
        ...


class FileSource(UpdateSource, Protocol):
    """The source of updates of a model file."""

    def has_last_model(self, dismissed: DismissedError | None) -> bool:
        """Return True if this process must ask the master whether to write the final model.

        Args:
            dismissed: reason why this process leaves before the end of the job; None: it does not.
        """
        ...

    def close(self) -> None:
        """Stop the readers, and stop leasing and reporting tasks."""
        ...
