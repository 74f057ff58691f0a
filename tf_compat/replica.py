"""The state of a Keras model that one process holds alone, in checkpoints and out of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_compat.trained import Trained
from torch_edl.checkpoint import files, layout
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks

Array = npt.NDArray[Any]

_STEM = "shard-0-of-1"
_MODEL, _OPTIMIZER = f"{_STEM}.dense.safetensors", f"{_STEM}.optimizer.safetensors"


class Replica:
    """See :class:`~torch_edl.engine.local.HeldModel`."""

    def __init__(self, trained: Trained, seed: int) -> None:
        self.model = trained.model
        self._trained = trained
        self._seed = seed
        self._step = 0

    @property
    def step(self) -> int:
        return self._step

    def count(self, minibatches: int) -> None:
        self._step += minibatches

    def check_tables(self) -> None:
        self._trained.hold_rows(self._seed)

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        trained, version = self._trained, self._step
        model = {place.name: place.value.copy() for place in trained.places}
        slots = {
            str(number): np.asarray(variable).copy()
            for number, variable in enumerate(trained.optimizer.variables)
        }
        tables = [(rows.table, rows.table.step) for rows in trained.local_rows()]
        for table, _ in tables:
            table.core.end_snapshot()  # of a copy that was never written
            table.core.begin_snapshot()
        # No optimizers and schedulers of torch, whose worker says so when it is to resume this.
        header = {"position": {"step": version}, "optimizers": [], "stateful": [],
                  "keras": type(trained.optimizer).__name__}  # fmt: skip

        def write_to(directory: Path) -> Snapshot:
            directory.mkdir(parents=True, exist_ok=True)
            written = {
                **files.write_tables(tables, directory, _STEM),
                _MODEL: files.write(directory / _MODEL, model, {"format": "pt"}),
                _OPTIMIZER: files.write(
                    directory / _OPTIMIZER, slots, {"state": json.dumps(header)}
                ),
            }
            return Snapshot(files=written, watermarks=watermarks, version=version)

        return write_to

    def restore(self, folder: Path, *, strategy: str, values_only: bool) -> Manifest | None:
        source = CheckpointReader(folder, values_only=values_only, strategy=strategy)
        load_values(self._trained, source, folder)
        for rows in self._trained.local_rows():
            rows.restore(source)
        if not layout.is_checkpoint(folder) or values_only:
            return None
        self._load_optimizer(folder)
        return source.manifest

    def _load_optimizer(self, folder: Path) -> None:
        path, optimizer = folder / _OPTIMIZER, self._trained.optimizer
        header = json.loads(files.metadata(path).get("state", "{}"))
        saved, own = header.get("keras"), type(optimizer).__name__
        if saved != own:
            raise CheckpointError(
                f"{folder}: the state of {saved or 'an optimizer of torch'}, and this model file "
                f"has {own}; start from the values alone with --load"
            )
        for number, variable in enumerate(optimizer.variables):
            slots = files.read(path, {str(number)})
            if not slots or slots[str(number)].shape != tuple(variable.shape):
                raise CheckpointError(f"{path}: the state of another model")
            variable.assign(slots[str(number)])
        self._step = int(header["position"]["step"])


def load_values(trained: Trained, source: CheckpointReader, where: object) -> None:
    """Takes over the values of a saved model; the rows of tables stay where they are.

    Raises:
        CheckpointError: the values are of another model.
    """
    values, _ = source.dense()
    held = {layer.table for layer in trained.tables}
    for table in source.tables.values():
        if table.name not in held and table.bound:  # a table there, a plain weight here
            values |= dict.fromkeys((f"{path}.weight" for path in table.modules), table.weight())
    wrong = []
    for place in trained.places:
        value = values.get(place.name)
        if value is None:
            wrong.append(f"{place.name} is not there")
        elif value.shape != place.shape:
            wrong.append(f"{place.name} is {value.shape} there and {place.shape} here")
    if wrong:
        raise CheckpointError(
            f"{where} is of another model: {', '.join(wrong)}; use the model file of the job that "
            "wrote it, with the same arguments after --"
        )
    for place in trained.places:
        place.assign(values[place.name])
