"""Plugin for torchrun: with ``torchrun --rdzv-backend=edl``, torch's agents rendezvous at a master.

torch imports this module at its own import, so nothing expensive is imported here. torch's agent
starts and watches the workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def handler_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function that creates a handler; entry point ``edl`` of ``torchrun.handlers``."""

    def create(parameters: RendezvousParameters) -> RendezvousHandler:
        from torch_edl.launch.torchrun.handler import MasterRendezvousHandler

        return MasterRendezvousHandler(parameters)

    return create
