"""Room for the rows of tables that are on a disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_edl.ps_server.requests import Gradients


class DiskRoom:
    """Makes room for new rows before a push changes anything."""

    def __init__(self) -> None:
        self.problem = ""
        """Reason why a table has no room for the rows of the last call; empty if it had room."""

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note in :attr:`problem` whether the calls inside fail for want of room."""
        try:
            yield
        except OSError as error:
            self.problem = str(error.strerror)
            raise
        self.problem = ""

    def prepare(self, gradients: Gradients) -> None:
        """Read the rows of a push from the disk, and make room for those that the push creates.

        The caller holds no lock, so that several pushes wait for the disk at the same time.

        Raises:
            OSError: the disk is full.
        """
        found = [(table, ids) for table, ids, _ in gradients.tables if table.on_disk]
        if found:
            with self.noting():
                for table, ids in found:
                    table.prepare(ids)
