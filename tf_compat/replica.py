"""The complete state of a Keras model in one process, for checkpoints and for members of a ring."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_compat.trained import TrainedModel
from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.tensor_files import OPTIMIZER_FILE, optimizer_header
from torch_edl.engine.replica import Position, other_model, snapshot_of
from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


class KerasReplica:
    """Implements :class:`~torch_edl.engine.replica.ModelReplica`."""

    def __init__(self, trained: TrainedModel, seed: int) -> None:
        self.model = trained.model
        self._trained = trained
        self._seed = seed
        self.position = Position()

    def check_tables(self) -> None:
        self._trained.hold_rows(self._seed)

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        trained = self._trained
        model = {place.name: place.value.copy() for place in trained.places}
        slots = {
            str(number): np.asarray(variable).copy()
            for number, variable in enumerate(trained.optimizer.variables)
        }
        tables = [(rows.table, rows.table.step) for rows in trained.local_rows()]
        tensor_files.begin_snapshots(tables)
        # The empty lists let a worker of torch detect that the checkpoint has no torch optimizer.
        header = copy.deepcopy({**self._header(), "optimizers": [], "stateful": []})

        def write(folder: Path) -> dict[str, int]:
            return tensor_files.write_replica(folder, tables, model, slots, header)

        return snapshot_of(write, watermarks, self.position.step)

    def outgoing(self) -> tuple[dict[str, Any], list[Bytes]]:
        values = [np.ascontiguousarray(variable) for _, variable in self._variables()]
        header = {**self._header(), "tensors": self._described()}
        return header, [value.reshape(-1).view(np.uint8) for value in values]

    def incoming(self, header: dict[str, Any]) -> tuple[list[Bytes], Callable[[], None]]:
        keras, described = self._header()["keras"], self._described()
        if (header.get("keras"), header["tensors"]) != (keras, described):
            raise CheckpointError(
                f"the other members of the ring have another model, or not {keras}: start all "
                "workers with the same model file and the same arguments after --"
            )
        variables = [variable for _, variable in self._variables()]
        values = [np.empty_like(np.asarray(variable), order="C") for variable in variables]

        def take() -> None:
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            self.position = Position(**header["position"])

        return [value.reshape(-1).view(np.uint8) for value in values], take

    def digest(self) -> int:
        found = 0
        for place in self._trained.trained:
            found = zlib.crc32(np.ascontiguousarray(place.variable).tobytes(), found)
        return found

    def _header(self) -> dict[str, Any]:
        return {
            "position": vars(self.position).copy(),
            "keras": type(self._trained.optimizer).__name__,
        }

    def _variables(self) -> list[tuple[str, Any]]:
        """Return all variables that training changes, with names that are equal in all
        processes."""
        optimizer = enumerate(self._trained.optimizer.variables)
        return [
            *((place.name, place.variable) for place in self._trained.places),
            *((f"optimizer.{number}", variable) for number, variable in optimizer),
        ]

    def _described(self) -> list[list[Any]]:
        return [
            [name, str(variable.dtype), [int(size) for size in variable.shape]]
            for name, variable in self._variables()
        ]

    def restore(self, folder: Path, *, values_only: bool) -> Manifest | None:
        source = CheckpointReader(folder, values_only=values_only, on_servers=False)
        with layout.reading(folder):
            load_values(self._trained, source, folder)
        for rows in self._trained.local_rows():
            rows.restore(source)
        if not layout.is_checkpoint(folder) or values_only:
            return None
        self._load_optimizer(folder)
        return source.manifest

    def _load_optimizer(self, folder: Path) -> None:
        path, optimizer = folder / OPTIMIZER_FILE, self._trained.optimizer
        found = optimizer_header(folder)
        saved, own = found.get("keras"), type(optimizer).__name__
        if saved != own:
            raise CheckpointError(
                f"{folder}: the state of {saved or 'an optimizer of torch'}, and this model file "
                f"has {own}; start from the values alone with --load"
            )
        for number, variable in enumerate(optimizer.variables):
            slots = tensor_files.read(path, {str(number)})
            if not slots or slots[str(number)].shape != tuple(variable.shape):
                raise CheckpointError(f"{path}: the state of another model")
            variable.assign(slots[str(number)])
        self.position = Position(**found["position"])


def load_values(trained: TrainedModel, source: CheckpointReader, where: object) -> None:
    """Assign the values of a saved model; the rows of tables are not changed.

    Raises:
        CheckpointError: the values belong to another model.
    """
    values = source.dense()
    held = {layer.table for layer in trained.tables}
    for table in source.tables.values():
        if table.name not in held and table.bound:  # saved as a table, a plain weight in this model
            values |= dict.fromkeys((f"{path}.weight" for path in table.modules), table.weight())
    wrong = []
    for place in trained.places:
        value = values.get(place.name)
        if value is None:
            wrong.append(f"{place.name} is not there")
        elif value.shape != place.shape:
            wrong.append(f"{place.name} is {value.shape} there and {place.shape} here")
    if wrong:
        raise CheckpointError(other_model(where, ", ".join(wrong)))
    for place in trained.places:
        place.assign(values[place.name])
