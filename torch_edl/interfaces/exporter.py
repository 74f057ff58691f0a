"""The interface of exporters: servers of the numbers of a job, in the process of the master."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch_edl.wire import master_pb2 as pb

PROMETHEUS = "prometheus"
"""Name of the entry point that ``--metrics-port`` loads."""


class Exporter(Protocol):
    """What an entry point of the group ``torch_edl.exporters`` names.

    The master imports it, which never imports torch.
    """

    def __call__(
        self, host: str, port: int, status: Callable[[], pb.GetStatusResponse]
    ) -> Callable[[], None]:
        """Serve the numbers of a job at an address, and return a function that ends it.

        Args:
            status: returns the current status of the job, without events; safe in any thread.

        Raises:
            UsageError: the address is not available.
        """
