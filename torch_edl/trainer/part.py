"""The two parts that a process of a script may have in a job: see :class:`Part`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from torch_edl.trainer.loader import Loader

Make = Callable[[int, int], bytes]
"""From (rank, world size) to a process's part of something that all compute together."""
Merge = Callable[[list[bytes]], tuple[list[bytes] | None, Any]]
"""From all parts, in the order of ranks, to those that are kept, and the result."""


class Part(Protocol):
    """A process's part in a job, once its script said what is trained: in a ring, or on servers.

    :class:`~torch_edl.trainer.job.Job` documents what has the same name there. All calls raise
    DismissedError where the job goes on without this process.
    """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def sync_gradients(self) -> bool: ...
    @property
    def catching_up(self) -> bool: ...
    @property
    def late(self) -> bool:
        """Whether others trained before this process came, which has not joined them yet."""
        ...

    @property
    def restored(self) -> bool:
        """Whether the model comes from a checkpoint."""
        ...

    @property
    def epochs_begun(self) -> int:
        """Epochs of all loops over loaders that this process went into, or ran through."""
        ...

    def batches(self, loader: Loader) -> Iterator[Any]:
        """One pass over a loader."""
        ...

    def together(self, make: Make, merge: Merge) -> tuple[list[bytes] | None, Any]:
        """What ``merge`` makes of the parts of all processes; (None, the result) in a process that
        came after it was made."""
        ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def close(self) -> None:
        """Ends this process's part."""
        ...

    def save_interrupted(self) -> None:
        """Writes a last checkpoint, since a signal ends the process."""
        ...

    def release(self) -> None:
        """Lets go of the optimizers: another part takes the place of this one."""
        ...
