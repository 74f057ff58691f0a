"""Restores values from a checkpoint of any number of servers, or from an exported model.

See :mod:`torch_edl.checkpoint.tensor_files` for the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from torch_edl import _core, typed_json
from torch_edl.checkpoint import layout, tensor_files
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import (
    AdmissionCounts,
    EmbeddingTable,
    Floats,
    Ids,
    TableRows,
    is_table_name,
)
from torch_edl.tables.watermarks import Watermarks
from torch_edl.typed_json import Count, Range, parse
from torch_edl.wire import pserver_pb2 as pb

FORMAT = 1
"""Version of the format of an exported model."""

_INIT_ROWS = 1 << 16


class _Initializer(TypedDict):
    kind: str
    args: dict[str, float]


class TableInfo(TypedDict):
    """The description of a table in a file."""

    dim: Annotated[int, Range(1, (1 << 31) - 1)]
    num_embeddings: Count
    """Upper bound of ids, exclusive; 0 if any int64 is an id."""
    initializer: _Initializer
    seed: int
    storage_dtype: NotRequired[str]
    """Type of the values in memory; ``fp32`` if absent."""
    modules: NotRequired[list[str]]
    """Paths of the modules that share the table in the model; the name of the table if absent."""


class _Format(TypedDict):
    format: int


class _Export(_Format):
    tables: dict[str, TableInfo]


@dataclass
class SavedTable:
    """A table on the disk, with the parts of all shards. Reading a damaged part raises
    CheckpointError."""

    name: str
    info: TableInfo
    parts: list[Path] = field(default_factory=list)
    """Files with rows."""
    counts_parts: list[Path] = field(default_factory=list)
    """Files with counted ids that have no row."""
    slot_names: list[str] = field(default_factory=list)
    """Names of the optimizer's slots of a row; empty if only values are read."""
    step: int = 0
    """Number of updates of the table."""
    _weight: Floats | None = None

    @classmethod
    def of_weight(cls, name: str, weight: Floats) -> SavedTable:
        """Return a table with the rows of a dense weight (num_embeddings, dim)."""
        about: TableInfo = {
            "dim": weight.shape[1],
            "num_embeddings": weight.shape[0],
            "initializer": {"kind": "zeros", "args": {}},
            "seed": 0,
        }
        return cls(name, about, _weight=weight)

    @property
    def modules(self) -> list[str]:
        """Paths of the modules that share the table in the model."""
        return list(self.info.get("modules", [self.name]))

    def weight(self) -> Floats:
        """Return the whole table (num_embeddings, dim); unseen rows have their initial values.

        Raises:
            UsageError: the table has no bound.
        """
        count, begins = self.bound, self.info["initializer"]
        if not count:
            raise UsageError(f"table {self.name}: it has no bound, so it is no dense weight")
        try:
            out = np.empty((count, self.info["dim"]), np.float32)
        except (MemoryError, ValueError):
            raise CheckpointError(
                f"table {self.name}: {count:,} rows of {self.info['dim']:,} numbers do not fit "
                "into the memory of this process"
            ) from None
        for start in range(0, count, _INIT_ROWS):
            ids = np.arange(start, min(start + _INIT_ROWS, count))
            out[ids] = _core.init_rows(
                self.name,
                self.info["seed"],
                begins["kind"],
                begins["args"],
                ids,
                out.shape[1],
                self.info.get("storage_dtype", "fp32"),
            )
        for path, rows in self.rows():
            if len(rows.ids) and not 0 <= rows.ids.min() <= rows.ids.max() < count:
                raise CheckpointError(f"{path}: ids beyond the {count} rows of table {self.name}")
            out[rows.ids] = rows.vectors
        return out

    @property
    def bound(self) -> int:
        """Upper bound of ids, exclusive; 0 if any int64 is an id."""
        return self.info["num_embeddings"]

    def rows(self) -> Iterator[tuple[Path, TableRows]]:
        """Yield the path and the rows of each part."""
        if self._weight is not None:
            n = len(self._weight)
            none, slots = np.zeros(n, np.int64), np.empty((n, 0, self._weight.shape[1]), np.float32)
            yield Path(self.name), TableRows(np.arange(n), self._weight, slots, none, none)
        for path in self.parts:
            tensors = tensor_files.read(path)
            ids, vectors = _required(path, tensors, "ids", "vectors")
            if vectors.shape != (len(ids), self.info["dim"]):
                raise CheckpointError(
                    f"{path}: vectors of shape {vectors.shape}, table {self.name} has "
                    f"({len(ids)}, {self.info['dim']})"
                )
            none = np.zeros(len(ids), np.int64)
            slots = tensors.get("slots", np.empty((len(ids), 0, self.info["dim"]), np.float32))
            last_used, count = tensors.get("last_used", none), tensors.get("count", none)
            yield path, TableRows(ids, vectors, slots, last_used, count)

    def ids(self) -> Iterator[Ids]:
        """Yield the ids of each part, without reading the rest of the part."""
        for path in self.parts:
            yield from _required(path, tensor_files.read(path, {"ids"}), "ids")

    def vectors(self, rows: int) -> Iterator[Floats]:
        """Yield the vectors in the order of :meth:`ids`, at most ``rows`` at a time."""
        for path in self.parts:
            yield from tensor_files.read_rows(path, "vectors", rows)

    def counts(self) -> Iterator[tuple[Path, AdmissionCounts]]:
        """Yield the path and the counted ids without a row of each part."""
        for path in self.counts_parts:
            tensors = tensor_files.read(path)
            yield path, AdmissionCounts(*_required(path, tensors, "ids", "count", "last_used"))


def _required(path: Path, tensors: dict[str, Any], *names: str) -> list[Any]:
    """Return tensors of a part by their names, all of which the part must have."""
    for name in names:
        if name not in tensors:
            raise CheckpointError(f"{path}: no tensor {name!r}; it is damaged")
    return [tensors[name] for name in names]


class CheckpointReader:
    """A checkpoint of any number of shards, or an exported model.

    Args:
        shard, shards: the part of the tables to restore.
        values_only: read only values, without watermarks, versions, slots and steps, as initial
            values of another job. A checkpoint of any strategy can be read.
        optimizer: read slots and steps, too, with ``values_only``; an exported model has none.
        on_servers: whether the checkpoint must have been written by parameter servers (True) or by
            a worker; ignored if only values are read.

    Raises:
        CheckpointError: the folder holds neither, or is damaged; also raised by all methods.
    """

    def __init__(
        self,
        directory: Path,
        shard: int = 0,
        shards: int = 1,
        *,
        values_only: bool = False,
        optimizer: bool = False,
        on_servers: bool = True,
    ) -> None:
        self._shard, self._shards = shard, shards
        self._has_slots = optimizer or not values_only
        self._on_servers = on_servers
        self._values_only = values_only
        self.watermarks = Watermarks()
        """Watermarks of the records in the model; empty if only values are read."""
        self.version = 0
        """Version of the shard; 0 if only values are read."""
        self._dense: list[Path] = []
        self.tables: dict[str, SavedTable] = {}
        """Saved tables by name."""
        self._directory = directory
        with layout.reading(directory):
            if layout.is_checkpoint(directory):
                self._open_checkpoint(directory, shard, shards)
            elif (directory / layout.EXPORTED_MODEL).exists():
                self._open_export(directory)
            else:
                raise CheckpointError(
                    f"{directory}: neither a checkpoint ({layout.MANIFEST}) nor an exported model "
                    "(model.safetensors) is there"
                )

    def _open_checkpoint(self, directory: Path, shard: int, shards: int) -> None:
        self.manifest = layout.read(directory)
        if self.manifest.on_servers != self._on_servers and self._has_slots:
            raise CheckpointError(
                f"{directory}: a checkpoint of the strategy {self.manifest.strategy}; continue it "
                f"with --strategy {self.manifest.strategy}, or start from its values alone with "
                "--load"
            )
        versions = () if self._values_only else self.manifest.versions
        if not self._values_only:
            self.watermarks = self.manifest.watermarks
        if versions:
            self.version = versions[shard] if len(versions) == shards else max(versions)
        for name in self.manifest.files:
            path = directory / name
            if name.endswith(".dense.safetensors"):
                self._dense.append(path)
            elif ".table-" in name:
                self._add_part(path)

    def _add_part(self, path: Path) -> None:
        about = tensor_files.metadata(path)
        try:
            name, info = about["table"], parse(about["info"], TableInfo)
            slots, step = parse(about["slots"], list[str]), parse(about["step"], Count)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{path}: not a part of a table: {error}; the file is damaged: use another "
                "checkpoint"
            ) from None
        if not self._has_slots:
            slots, step = [], 0
        _require_name(name, path)
        saved = self.tables.setdefault(name, SavedTable(name, info, slot_names=slots))
        if (saved.info, saved.slot_names) != (info, slots):
            raise CheckpointError(
                f"{path}: its description of table {name} differs from that of other parts"
            )
        (saved.counts_parts if ".counts-" in path.name else saved.parts).append(path)
        saved.step = max(saved.step, step)

    def _open_export(self, directory: Path) -> None:
        self._dense.append(directory / layout.EXPORTED_MODEL)
        path = directory / layout.EXPORTED_METADATA
        try:
            text = typed_json.read(path)
            if (found := parse(text, _Format)["format"]) != FORMAT:
                raise CheckpointError(
                    f"{path}: format {found}, this torch-edl reads {FORMAT}; use a newer one"
                )
            for name, info in parse(text, _Export)["tables"].items():
                _require_name(name, path)
                part = directory / "embeddings" / f"{name}.safetensors"
                self.tables[name] = SavedTable(name, info, [part])
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}; export it again") from None

    def dense(self) -> dict[str, tensor_files.Array]:
        """Return dense parameters, slots and steps of all shards by name."""
        values: dict[str, tensor_files.Array] = {}
        with layout.reading(self._directory):
            for path in self._dense:
                values.update(tensor_files.read_dense(path))
        if not self._has_slots:
            slots = {name for name in values if name.rpartition("@")[0] in values}
            return {name: v for name, v in values.items() if name not in slots}
        return values

    def restore_table(self, info: pb.EmbeddingTableInfo, optimizers: Optimizers) -> EmbeddingTable:
        """Return the table that ``info`` describes, with the rows that this shard owns.

        An unseen row starts with the initializer of the saved table. A dense weight of the saved
        model can be restored as a table.

        Raises:
            UsageError: the saved model lacks the table, or has it in another dimension.
        """
        saved = self.tables.get(info.name)
        if saved is None:
            weight = self.dense().get(f"{info.name}.weight")
            if weight is None:
                known = ", ".join(self.tables) or "none"
                raise UsageError(
                    f"table {info.name}: not in the saved model (tables there: {known})"
                )
            saved = SavedTable.of_weight(info.name, weight)
        if saved.info["dim"] != info.dim:
            raise UsageError(
                f"table {info.name}: dim {info.dim}, but {saved.info['dim']} in the saved model"
            )
        trained = pb.EmbeddingTableInfo()
        trained.CopyFrom(info)
        begins = saved.info["initializer"]
        trained.initializer.CopyFrom(pb.Initializer(kind=begins["kind"], args=begins["args"]))
        table = EmbeddingTable(trained, saved.info["seed"], optimizers, info, self._shards)
        with layout.reading(self._directory):
            for path, counts in saved.counts():
                mine = np.flatnonzero(_core.owner(counts.ids, self._shards) == self._shard)
                counted = AdmissionCounts(
                    counts.ids[mine],
                    counts.count[mine],
                    np.minimum(counts.last_used[mine], saved.step),
                )
                try:
                    table.load_counts(counted)
                    table.fit()
                except (ValueError, IndexError) as error:
                    raise CheckpointError(f"{path}: its ids do not fit: {error}") from error
            for path, rows in saved.rows():
                mine = np.flatnonzero(_core.owner(rows.ids, self._shards) == self._shard)
                part = TableRows(
                    rows.ids[mine],
                    rows.vectors[mine],
                    rows.slots[mine],
                    # With values only, updates count from 0, and each row was last used at 0.
                    np.minimum(rows.last_used[mine], saved.step),
                    rows.count[mine],
                )
                try:
                    table.load(part, saved.slot_names)
                    table.fit()
                except (ValueError, IndexError) as error:
                    raise CheckpointError(f"{path}: its rows do not fit: {error}") from error
        table.resume_at(saved.step)
        return table


def _require_name(table: str, path: Path) -> None:
    """Raise CheckpointError if a file names a table as no model can: the name becomes a file name,
    which must not lead outside the folder."""
    if not is_table_name(table):
        raise CheckpointError(
            f"{path}: a table with the name {table!r}, which no table can have; the file was "
            "changed, use another checkpoint"
        )
