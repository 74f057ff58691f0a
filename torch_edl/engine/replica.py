"""The complete state of a model in one process, as the engines see it, for every framework, with
its position in the data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.data.resuming import difference
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks

log = logging.getLogger(__name__)


@dataclass
class Position:
    """The updates and records that the model of a replica includes."""

    step: int = 0
    """Number of changes of the model, including those skipped because a gradient was not finite. In
    a ring, an update is one change; with the engine ``local``, each of its minibatches is one."""
    pass_index: int = 0
    """Number of the current pass over data. Loaders and evaluations of a script are counted in the
    order in which the script runs them."""
    records: int = 0
    """Records of the current pass that are in the model."""
    results: dict[str, Any] = field(default_factory=dict)
    """Results of evaluations by their pass, for members that join later."""
    data: dict[str, Any] = field(default_factory=dict)
    """The data of the newest pass and their order, which define the meaning of ``records``."""
    epochs: int = 0
    """Number of epochs of the newest pass."""
    ended: list[int] = field(default_factory=lambda: [-1, 0])
    """Number and records of the newest completed pass."""
    left_out: int = 0
    """Records of all passes for which no member called backward."""
    nan_updates: int = 0
    """Updates that were left out, since their gradients were not finite."""

    def go_through(self, data: dict[str, Any], epochs: int) -> None:
        """Begin or continue a pass over these data.

        Raises:
            UsageError: the restored checkpoint is in the middle of a pass over other data.
        """
        differs = difference(self.data, data) if self.records else None
        if differs is not None:
            then, now = differs
            raise UsageError(
                f"the checkpoint is {self.records:,} records into a pass with {then}; now it is "
                f"{now}: use the same data and options, or another checkpoint_dir to start over"
            )
        if self.records and self.data.get("samples") not in (None, data.get("samples")):
            # Only a warning: an error would prevent a script with an edited dataset from resuming.
            log.warning(
                "the dataset stores other samples than when the checkpoint was written, %d "
                "records ago in this pass: some records are trained twice and others never if the "
                "samples are split or shuffled without a seed", self.records,
            )  # fmt: skip
        self.data, self.epochs = data, epochs

    def end(self) -> None:
        """End the current pass."""
        self.ended = [self.pass_index, self.records]
        self.pass_index, self.records = self.pass_index + 1, 0

    def extend(self, number: int, epochs: int) -> None:
        """Continue pass ``number`` if it was the last one to end, and now has more epochs.

        Evaluations after that pass are repeated.
        """
        ended, records = self.ended
        if ended == number < self.pass_index and epochs > self.epochs:
            self.pass_index, self.records = number, records
            self.results = {n: value for n, value in self.results.items() if int(n) < number}

    @property
    def progress(self) -> int:
        """Number of updates and evaluations so far. Members of a ring differ by at most one."""
        return self.step + len(self.results)


def other_model(where: object, difference: object) -> str:
    """Return the message about values of another model."""
    return (
        f"{where} is of another model: {difference}; use the model file of the job that wrote it, "
        "with the same arguments after --"
    )


def snapshot_of(
    write: Callable[[Path], dict[str, int]], watermarks: Watermarks, version: int
) -> Callable[[Path], Snapshot]:
    """Return a function that creates a folder and writes a copied state there.

    Args:
        write: writes the files of the state and returns their sizes in bytes by name.
    """

    def write_to(directory: Path) -> Snapshot:
        directory.mkdir(parents=True, exist_ok=True)
        return Snapshot(files=write(directory), watermarks=watermarks, version=version)

    return write_to


Bytes = npt.NDArray[np.uint8]


class ModelReplica(Protocol):
    """A model with its optimizers and its position in the data: the whole model of a single
    process, or the state that is equal in all members of a ring.

    Each framework has one (:class:`torch_edl.pytorch.replica.Replica`); the engines import no
    framework, and know it by this interface.
    """

    model: Any
    position: Position

    def check_tables(self) -> None:
        """Check before the first step that the rows of tables can be trained in this process.

        Raises:
            UnsupportedOptimizerError: the model has tables, and no kernel exists for the optimizer.
        """
        ...

    def restore(self, folder: Path, *, values_only: bool) -> Manifest | None:
        """Load a checkpoint, or the values of an exported model.

        Args:
            values_only: load only the values of the model, also from a checkpoint of servers.

        Returns:
            The manifest of a completely loaded checkpoint; None if only values were loaded.

        Raises:
            CheckpointError: the checkpoint is damaged, or belongs to servers or another model.
        """
        ...

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        """Copy the current state; return a function that creates a folder and writes the copy
        there. The function may be called from any thread."""
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
