"""Predictions of tasks, as parts of a folder, and the output that is merged from all parts.

A part ``part-<task id>.arrow`` is an Arrow file with the kept columns of the records, then a column
for each output. An output of arrays is a column of lists of fixed length, one in another for each
dimension. Parts are mapped, so memory holds the buffers of the output file.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, ipc, parquet, types

from torch_edl.checkpoint.durable import replacing
from torch_edl.errors import ContractError, JobFailedError


def write_part(
    folder: Path, task_id: int, outputs: Mapping[str, npt.NDArray[Any]], kept: pa.Table | None
) -> None:
    """Write the part of a task atomically, so that a repeated task replaces the file.

    Args:
        outputs: arrays with one row per record, by name.
        kept: columns of the task's records; None: no columns are kept.

    Raises:
        ContractError: a kept column has the name of an output or another number of rows, outputs
            differ in their rows, or Arrow lacks the type of an output.
        OSError: the part cannot be written.
    """
    columns = {} if kept is None else dict(zip(kept.column_names, kept.columns, strict=True))
    if twice := columns.keys() & outputs.keys():
        raise ContractError(
            f"--keep {twice.pop()}: the model has an output of that name; let it return a dict "
            "with other names, or leave the column out"
        )
    rows = {len(array) for array in outputs.values()}
    if len(rows) > 1:
        shapes = {name: array.shape for name, array in outputs.items()}
        raise ContractError(f"outputs {shapes} do not have one row per record")
    if kept is not None and rows - {len(kept)}:
        raise ContractError(
            f"--keep: {rows.pop()} predictions for {len(kept)} records; feed, model and "
            "prediction_outputs_processor must keep every record"
        )
    for name, array in outputs.items():
        try:
            columns[name] = _column(array)
        except (pa.ArrowException, TypeError) as error:
            raise ContractError(f"output {name!r} of dtype {array.dtype}: {error}") from error
    table = pa.table(columns)
    path = folder / f"part-{task_id:012d}.arrow"
    with replacing(path) as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def merge(folder: Path, output: Path, *, tasks: int) -> int:
    """Write ``output`` from the parts of a folder, atomically.

    Args:
        folder: folder of the parts, whose names sort in the order of the tasks.
        output: path with the suffix ``.parquet``, ``.csv`` (an output of arrays becomes the
            columns ``name_0``, ``name_1``, ...) or ``.npz``.
        tasks: expected number of parts. The workers have checked the number of rows of each part.

    Returns:
        The number of rows.

    Raises:
        JobFailedError: a part is damaged or missing, or parts differ in their columns.
        OSError: the output cannot be written.
    """
    files = sorted(folder.glob("part-*.arrow"))
    if len(files) != tasks:
        raise JobFailedError(f"{folder}: {len(files):,} parts of {tasks:,} tasks")
    schema = _common_schema(files)
    with replacing(output) as file:
        if output.suffix == ".npz":
            _write_npz(file, files, schema)
        else:
            _write_table(file, files, schema, is_csv=output.suffix == ".csv")
    return sum(len(_read(each)) for each in files)


def _column(array: npt.NDArray[Any]) -> pa.Array:
    values = pa.array(array.reshape(-1))
    for place in reversed(range(1, array.ndim)):
        kind = pa.list_(values.type, array.shape[place])
        length = math.prod(array.shape[:place])
        values = pa.Array.from_buffers(kind, length, [None], children=[values])
    return values


def _common_schema(files: Sequence[Path]) -> Any:
    """Return the schema to which the columns of all parts can be converted."""
    common: Any = None
    for file in files:
        schema = _read(file).schema
        common = schema if common is None else common
        if schema.names != common.names:
            raise JobFailedError(
                f"{file}: has the columns {schema.names}, an earlier part {common.names}"
            )
        try:
            common = pa.unify_schemas([common, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise JobFailedError(f"{file}: differs from an earlier part: {error}") from error
    return pa.schema([]) if common is None else common


def _read(file: Path, schema: Any = None) -> Any:
    """Return the table of a part, with the types of a schema."""
    try:
        with pa.memory_map(str(file)) as mapped:
            table = ipc.open_file(mapped).read_all()
        return table if schema is None else table.cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise JobFailedError(f"{file}: damaged: {error}") from error


def _write_npz(output: IO[bytes], files: Sequence[Path], schema: Any) -> None:
    # The format of np.savez, written part by part, so that the output need not fit into memory.
    with zipfile.ZipFile(output, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in schema.names:
            dtype, rows = np.dtype(np.void), 0
            for number, file in enumerate(files):
                array = _array(_read(file, schema)[name])
                dtype = np.promote_types(dtype, array.dtype) if number else array.dtype
                rows += len(array)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (rows, *array.shape[1:]),
                }
                np.lib.format.write_array_header_2_0(stream, header)
                for file in files:
                    array = _array(_read(file, schema)[name])
                    stream.write(array.astype(dtype).tobytes())


def _array(column: Any) -> npt.NDArray[Any]:
    """Return a column as an array with a row for each value; texts have a fixed width."""
    values, shape = column.combine_chunks(), [len(column)]
    while types.is_fixed_size_list(values.type):
        shape.append(values.type.list_size)
        values = values.flatten()
    array: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if array.dtype == object:
        array = array.astype(bytes if types.is_binary(values.type) else str)
    return array.reshape(shape)


def _write_table(output: IO[bytes], files: Sequence[Path], schema: Any, *, is_csv: bool) -> None:
    shown = _flat(schema.empty_table()).schema if is_csv else schema
    make = csv.CSVWriter if is_csv else parquet.ParquetWriter
    with make(output, shown) as writer:
        for file in files:
            table = _read(file, schema)
            writer.write_table(_flat(table) if is_csv else table)


def _flat(table: Any) -> Any:
    """Return the table with a column for each place in lists of fixed length."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        kind = table[name].type
        flat = {name: table[name]}
        if types.is_fixed_size_list(kind):
            places = [table[name]]
            while types.is_fixed_size_list(kind):
                places = [pc.list_element(p, k) for p in places for k in range(kind.list_size)]
                kind = kind.value_type
            flat = {f"{name}_{k}": place for k, place in enumerate(places)}
        if twice := columns.keys() & flat.keys():
            raise JobFailedError(
                f"two columns have the name {twice.pop()!r}: leave one out of --keep, or let the "
                "model return a dict with other names"
            )
        columns |= flat
    return pa.table(columns)
