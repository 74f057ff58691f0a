"""Exports a checkpoint as a model: plain safetensors, without optimizer state."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.durable import replacing_path
from torch_edl.checkpoint.reader import FORMAT, CheckpointReader, SavedTable
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError

_ROWS = 1 << 14
"""Number of rows that are written at a time. If each of them is on another page of the file, the
pages take 64 MB of memory."""


def write_output(checkpoint_dir: str | Path, output_dir: str | Path) -> None:
    """Write ``model.safetensors`` (dense parameters and buffers by state_dict name),
    ``embeddings/NAME.safetensors`` (``ids`` int64 (n,) sorted, ``vectors`` float32 (n, dim)),
    ``preprocessing.safetensors`` if the model has one, and ``metadata.json``. The folder replaces
    an existing one as a whole.

    Raises:
        CheckpointError: ``checkpoint_dir`` is not a checkpoint, or is damaged.
        OSError: the disk is full or read-only; no partial output is left.
    """
    source = CheckpointReader(Path(checkpoint_dir), values_only=True)
    with replacing_output(Path(output_dir)) as folder:
        values = source.dense()
        dense = {name: values[name] for name in sorted(values)}
        tensor_files.write(folder / layout.EXPORTED_MODEL, dense, {"format": "pt"})
        for table in source.tables.values():
            _write_table(table, folder / "embeddings" / f"{table.name}.safetensors")
        preprocessing = Path(checkpoint_dir) / PREPROCESSING_FILE
        if preprocessing.exists():
            shutil.copyfile(preprocessing, folder / PREPROCESSING_FILE)
        tables = {t.name: t.info for t in source.tables.values()}
        write_metadata(folder, job=source.manifest.job, steps=source.manifest.steps, tables=tables)


def write_metadata(
    folder: Path, *, job: str, steps: int, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write ``metadata.json``; ``tables`` is the description of each table by name."""
    about = {"format": FORMAT, "job": job, "steps": steps, "tables": tables}
    (folder / layout.EXPORTED_METADATA).write_text(json.dumps(about, indent=1), encoding="utf-8")


@contextlib.contextmanager
def replacing_output(output: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces ``output`` as a whole at the end, or not at all."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing_path(output) as folder:
        (folder / "embeddings").mkdir(parents=True)
        yield folder


def _write_table(table: SavedTable, path: Path) -> None:
    """Write a table in two passes over its parts: first the ids and their order, then the vectors.
    The process (the master of a job) thus needs memory for the ids only.

    Raises:
        CheckpointError: a part is damaged.
    """
    parts = list(table.ids())
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    del parts
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if len(ids) and bool((ids[1:] == ids[:-1]).any()):
        raise CheckpointError(f"table {table.name}: an id is in two parts of the checkpoint")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    del order
    n, dim = len(ids), table.info["dim"]
    head = tensor_files.header(
        {"ids": ("I64", (n,), n * 8), "vectors": ("F32", (n, dim), n * dim * 4)}, {}
    )
    if n == 0:
        path.write_bytes(head)
        return
    with open(path, "w+b") as file:
        file.write(head)
        file.write(ids.data)
        file.flush()
        # Allocated, not sparse: a full disk must raise OSError here, not SIGBUS in the map below.
        os.posix_fallocate(file.fileno(), 0, len(head) + n * 8 + n * dim * 4)
        _scatter(table, place, mmap.mmap(file.fileno(), 0), len(head) + n * 8)


def _scatter(
    table: SavedTable, place: npt.NDArray[np.int64], mapped: mmap.mmap, offset: int
) -> None:
    """Write the vectors of a table to their places (n,) in the mapped file, from ``offset`` on."""
    out = np.frombuffer(mapped, "<f4", offset=offset).reshape(len(place), -1)
    start = 0
    for vectors in table.vectors(_ROWS):
        stop = start + len(vectors)
        if stop > len(out) or vectors.shape[1] != out.shape[1]:
            break
        out[place[start:stop]] = vectors
        start = stop
        # Leave the pages of these rows to the page cache.
        mapped.madvise(mmap.MADV_DONTNEED)
    if start != len(out):
        raise CheckpointError(
            f"table {table.name}: its parts have no vectors of {out.shape[1]} numbers for each of "
            f"their {len(out)} ids"
        )
    mapped.flush()
