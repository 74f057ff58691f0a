"""Merging of the predictions of all tasks, in the order of the records.

Workers write ``part-<task id>.npz``, which has one array per output with one row per record, and
``part-<task id>.arrow`` if columns of the records are kept. Parts are read one at a time, so memory
holds one part and the buffers of the output file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from torch_edl.checkpoint.durable import replacing
from torch_edl.errors import JobFailedError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Column:
    """The common type of one output over all parts."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Shape of one row."""


def merge(parts: Path, output: Path, *, tasks: int) -> int:
    """Write ``output`` from the parts of a folder, atomically.

    Args:
        parts: folder of ``part-*.npz``; the names sort in the order of the tasks.
        output: path with the suffix ``.parquet``, ``.csv`` (an output of vectors becomes the
            columns ``name_0``, ``name_1``, ...) or ``.npz``.
        tasks: expected number of parts. The workers have checked the number of rows of each part.

    Returns:
        The number of rows.

    Raises:
        JobFailedError: a part is damaged or missing, or parts differ in their outputs.
        OSError: the output cannot be written.
    """
    files = sorted(parts.glob("part-*.npz"))
    if len(files) != tasks:
        raise JobFailedError(f"{parts}: {len(files):,} parts of {tasks:,} tasks")
    columns, rows = _survey(files)
    kept = _survey_kept(files)
    with replacing(output) as file:
        if output.suffix == ".npz":
            _write_npz(file, files, columns, rows)
        else:
            _write_table(file, files, columns, kept, is_csv=output.suffix == ".csv")
    return rows


def _survey(files: Sequence[Path]) -> tuple[list[_Column], int]:
    columns: dict[str, _Column] = {}
    rows = 0
    for file in files:
        found = _read(file)
        if columns and found.keys() != columns.keys():
            raise JobFailedError(
                f"{file}: has the outputs {sorted(found)}, an earlier part {sorted(columns)}"
            )
        lengths = {len(array) if array.ndim else -1 for array in found.values()}
        if len(lengths) != 1 or -1 in lengths:
            shapes = {name: array.shape for name, array in found.items()}
            raise JobFailedError(f"{file}: outputs {shapes} do not have one row per record")
        rows += lengths.pop()
        for name, array in found.items():
            shape = array.shape[1:]
            seen = columns.get(name, _Column(name, array.dtype, shape))
            if seen.shape != shape:
                raise JobFailedError(
                    f"{file}: rows of {name!r} have shape {shape}, earlier ones {seen.shape}"
                )
            columns[name] = _Column(name, np.promote_types(seen.dtype, array.dtype), shape)
    return list(columns.values()), rows


def _read(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as part:
            return dict(part)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise JobFailedError(f"{file}: damaged: {error}") from error


def _survey_kept(files: Sequence[Path]) -> Any:
    """Return the common schema of the kept columns over all parts; None: no columns are kept."""
    if not files or not files[0].with_suffix(".arrow").exists():
        return None
    try:
        schemas = []
        for file in files:
            with ipc.open_stream(file.with_suffix(".arrow")) as part:
                schemas.append(part.schema)
        return pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise JobFailedError(f"the columns of --keep: {error}") from error


def _read_kept(file: Path, schema: Any) -> dict[str, Any]:
    if schema is None:
        return {}
    try:
        with ipc.open_stream(file.with_suffix(".arrow")) as part:
            table = part.read_all().cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise JobFailedError(f"{file}: the columns of --keep: {error}") from error
    return dict(zip(table.column_names, table.columns, strict=True))


def _write_npz(
    output: IO[bytes], files: Sequence[Path], columns: Sequence[_Column], rows: int
) -> None:
    # The format of np.savez, written part by part, so that the output need not fit into memory.
    with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for column in columns:
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as stream:
                header = {
                    "descr": np.lib.format.dtype_to_descr(column.dtype),
                    "fortran_order": False,
                    "shape": (rows, *column.shape),
                }
                np.lib.format.write_array_header_2_0(stream, header)
                for file in files:
                    with np.load(file, allow_pickle=False) as part:
                        stream.write(part[column.name].astype(column.dtype).tobytes())


def _write_table(
    output: IO[bytes], files: Sequence[Path], columns: Sequence[_Column], kept: Any, *, is_csv: bool
) -> None:
    writer: Any = None
    try:
        for file in files:
            part, fields = _read(file), _read_kept(file, kept)
            for column in columns:
                array = part[column.name].astype(column.dtype, copy=False)
                made = _flat(column, array) if is_csv else _nested(column, array)
                if twice := fields.keys() & made.keys():
                    raise JobFailedError(
                        f"--keep {twice.pop()}: an output has a column of that name; leave it out"
                    )
                fields.update(made)
            table = pa.table(fields)
            if writer is None:
                make = csv.CSVWriter if is_csv else parquet.ParquetWriter
                writer = make(output, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _nested(column: _Column, array: Array) -> dict[str, Any]:
    """Return one column; each dimension of a row is a list of fixed length."""
    values = pa.array(array.reshape(-1))
    for size in reversed(column.shape):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return {column.name: values}


def _flat(column: _Column, array: Array) -> dict[str, Any]:
    if not column.shape:
        return {column.name: pa.array(array)}
    wide = array.reshape(len(array), -1)
    return {
        f"{column.name}_{k}": pa.array(np.ascontiguousarray(wide[:, k]))
        for k in range(wide.shape[1])
    }
