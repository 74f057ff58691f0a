"""Exports a checkpoint as a model: plain safetensors, no optimizer state."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torch_edl.checkpoint import files, layout
from torch_edl.checkpoint.reader import FORMAT, CheckpointReader, SavedTable
from torch_edl.errors import CheckpointError


def write_output(checkpoint_dir: str | Path, output_dir: str | Path) -> None:
    """Writes ``model.safetensors`` (dense parameters and buffers by state_dict name),
    ``embeddings/NAME.safetensors`` (``ids`` int64 (n,) sorted, ``vectors`` float32 (n, dim)) and
    ``metadata.json``. The folder appears whole, in place of what was there.

    Raises:
        CheckpointError: ``checkpoint_dir`` is not a checkpoint, or is damaged.
        OSError: the disk is full or read-only; nothing half-written is left.
    """
    source = CheckpointReader(Path(checkpoint_dir), values_only=True)
    with replacing_folder(Path(output_dir)) as folder:
        values, _ = source.dense()
        dense = {name: values[name] for name in sorted(values)}
        files.write(folder / layout.EXPORTED_MODEL, dense, {"format": "pt"})
        for table in source.tables.values():
            _write_table(table, folder / "embeddings" / f"{table.name}.safetensors")
        tables = {t.name: t.info for t in source.tables.values()}
        write_metadata(folder, job=source.manifest.job, steps=source.manifest.steps, tables=tables)


def write_metadata(
    folder: Path, *, job: str, steps: int, tables: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes ``metadata.json``; ``tables`` is the description of each table by its name."""
    about = {"format": FORMAT, "job": job, "steps": steps, "tables": tables}
    (folder / layout.EXPORTED_METADATA).write_text(json.dumps(about, indent=1), encoding="utf-8")


@contextlib.contextmanager
def replacing_folder(output: Path) -> Iterator[Path]:
    """A temporary folder that replaces ``output`` as a whole at the end, or not at all."""
    temporary = output.with_name(f".{output.name}.part-{os.getpid()}")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        (temporary / "embeddings").mkdir(parents=True)
        yield temporary
        if output.exists():
            old = output.with_name(f".{output.name}.old-{os.getpid()}")
            os.replace(output, old)
            os.replace(temporary, output)
            shutil.rmtree(old)
        else:
            os.replace(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_table(table: SavedTable, path: Path) -> None:
    """Two passes over the parts, first for the ids and their order, then for the rows: memory is
    needed for the ids and one part only, whatever the size of the table."""
    parts = [rows.ids for _, rows in table.rows()]
    ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if len(ids) and bool((ids[1:] == ids[:-1]).any()):
        raise CheckpointError(f"table {table.name}: an id is in two parts of the checkpoint")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    n, dim = len(ids), int(table.info["dim"])
    head = files.header(
        {"ids": ("I64", (n,), n * 8), "vectors": ("F32", (n, dim), n * dim * 4)}, {}
    )
    if n == 0:
        path.write_bytes(head)
        return
    with open(path, "wb") as file:
        file.write(head)
        file.write(ids.data)
        file.flush()
        # Allocated, not sparse: a full disk must raise here rather than a SIGBUS in the map below.
        os.posix_fallocate(file.fileno(), 0, len(head) + n * 8 + n * dim * 4)
    vectors = np.memmap(path, "<f4", "r+", offset=len(head) + n * 8, shape=(n, dim))
    start = 0
    for _, rows in table.rows():
        stop = start + len(rows.ids)
        vectors[place[start:stop]] = rows.vectors
        start = stop
    vectors.flush()
