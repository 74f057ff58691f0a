"""The complete state of a model in one process, as the engines see it, for every framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.engine.position import Position
from torch_edl.tables.watermarks import Watermarks

Bytes = npt.NDArray[np.uint8]


class ModelReplica(Protocol):
    """A model with its optimizers and its position in the data: the whole model of a single
    process, or the state that is equal in all members of a ring.

    Each framework has one (:class:`torch_edl.pytorch.replica.Replica`); the engines import no
    framework, and know it by this interface.
    """

    model: Any
    position: Position

    @property
    def step(self) -> int:
        """Number of minibatches in the model."""
        ...

    def count(self, minibatches: int) -> None:
        """Add minibatches after the optimizer has stepped."""
        ...

    def check_tables(self) -> None:
        """Check before the first step that the rows of tables can be trained in this process.

        Raises:
            UnsupportedOptimizerError: the model has tables, and no kernel exists for the optimizer.
        """
        ...

    def restore(self, folder: Path, *, values_only: bool) -> Manifest | None:
        """See :meth:`~torch_edl.pytorch.replica.Replica.restore`."""
        ...

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        """See :meth:`~torch_edl.pytorch.replica.Replica.snapshot`."""
        ...

    def outgoing(self) -> tuple[dict[str, Any], list[Bytes]]:
        """Return the state for another member: a JSON header, and the bytes of each tensor."""
        ...

    def incoming(self, header: dict[str, Any]) -> tuple[list[Bytes], Callable[[], None]]:
        """Allocate memory for the state that another member sends.

        Returns:
            The memory of each tensor, and a function that loads the state after all of it has
            arrived; nothing changes before.
        """
        ...

    def digest(self) -> int:
        """Return a 32-bit checksum of the exact bits of all parameters."""
        ...
