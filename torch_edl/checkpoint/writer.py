"""Writes the state of a shard to files while training continues. :mod:`torch_edl.checkpoint.reader`
restores the files of any number of shards into any number of shards.

``shard-I-of-N.dense.safetensors`` holds NAME -> value (a tied weight under each of its names),
``NAME@SLOT`` -> slot and ``NAME@step`` -> updates that the parameter has had, and
``shard-I-of-N.table-T.part-P.safetensors`` ids, last_used, count, vectors and slots of some rows.
The metadata of a file names the table, and the step of its optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint import files
from torch_edl.tables.dense import DenseState
from torch_edl.tables.table import EmbeddingTable, Rows

PART_BYTES = 128 << 20
"""The size of a file with rows of a table, and the memory that writing it takes."""


@dataclass(frozen=True)
class Cut:
    """A shard at one moment. The snapshots of its tables have begun, so that their rows can be
    read later."""

    version: int
    dense: DenseState
    """A tied weight is in it under each of its names."""
    tables: list[tuple[EmbeddingTable, int]]
    """Each table with its step."""


def write(cut: Cut, directory: Path, shard: int, shards: int) -> dict[str, int]:
    """Writes a cut to an existing folder; returns file name to size.

    Raises:
        OSError: the disk is full or read-only; the files of this cut are removed.
    """
    stem = f"shard-{shard}-of-{shards}"
    name = f"{stem}.dense.safetensors"
    about = {"step": str(cut.dense.step)}
    try:
        size = files.write(directory / name, cut.dense.values, about)
        return {name: size, **write_tables(cut.tables, directory, stem)}
    except BaseException:
        (directory / name).unlink(missing_ok=True)
        raise
    finally:
        for table, _ in cut.tables:
            table.core.end_snapshot()


def write_tables(
    tables: Sequence[tuple[EmbeddingTable, int]], directory: Path, stem: str
) -> dict[str, int]:
    """Writes tables whose snapshots have begun, each as of its step; returns file name to size.

    Raises:
        OSError: the disk is full or read-only; the files are removed.
    """
    written: dict[str, int] = {}
    rows_of = [(t, step, t.snapshot_rows(_rows_per_part(t))) for t, step in tables]
    try:
        for index, (table, step, chunks) in enumerate(rows_of):
            for part, rows in enumerate(_some(chunks, table)):
                name = f"{stem}.table-{index}.part-{part}.safetensors"
                written[name] = files.write(directory / name, _tensors(rows), _about(table, step))
    except BaseException:
        for name in written:
            (directory / name).unlink(missing_ok=True)
        raise
    finally:
        # Pushes copy rows for a snapshot as long as it is open.
        for table, _, chunks in rows_of:
            chunks.close()
            table.core.end_snapshot()
    return written


def _rows_per_part(table: EmbeddingTable) -> int:
    row = 4 * table.dim * (1 + len(table.slot_names)) + 24
    return max(1, PART_BYTES // row)


def _some(chunks: Iterator[Rows], table: EmbeddingTable) -> Iterator[Rows]:
    """The chunks that hold rows, or an empty one: a file must describe an empty table, too."""
    empty = True
    for rows in chunks:
        if len(rows.ids):
            empty = False
            yield rows
    if empty:
        none = np.empty(0, np.int64)
        vectors = np.empty((0, table.dim), np.float32)
        slots = np.empty((0, len(table.slot_names), table.dim), np.float32)
        yield Rows(none, vectors, slots, none, none)


def _tensors(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    return {
        "ids": rows.ids,
        "last_used": rows.last_used,
        "count": rows.count,
        "vectors": rows.vectors,
        "slots": rows.slots,
    }


def _about(table: EmbeddingTable, step: int) -> dict[str, str]:
    info = table.info
    about = {
        "dim": info.dim,
        "num_embeddings": info.num_embeddings,
        "initializer": {"kind": info.initializer.kind, "args": dict(info.initializer.args)},
        "seed": table.seed,
        "modules": list(info.modules) or [info.name],
    }
    return {
        "table": info.name,
        "step": str(step),
        "slots": json.dumps(table.slot_names),
        "info": json.dumps(about),
    }
