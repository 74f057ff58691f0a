"""The plugin of torchrun: with ``torchrun --rdzv-backend=edl`` torch's agents meet at a master.

torch loads this module whenever it is imported itself, so nothing heavy is imported here. No
starting or watching of workers: that is the agent's, here torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def handler_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point ``edl`` of the group ``torchrun.handlers``."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        from torch_edl.torchrun_plugin.handler import MasterRendezvousHandler

        return MasterRendezvousHandler(parameters)

    return create
