"""The files of a checkpoint: safetensors, written without a copy in memory, read with a check of
their checksums.

``shard-I-of-N.dense.safetensors`` holds NAME -> value (a tied weight under each of its names),
``NAME@SLOT`` -> slot, and ``NAME@step`` -> number of updates of the parameter.
``shard-I-of-N.table-T.part-P.safetensors`` holds ids, last_used, count, vectors and slots of some
rows. ``shard-I-of-N.table-T.counts-P.safetensors`` holds ids, last_used and count of some counted
ids that have no row yet. The metadata of a file names the table and the step of its optimizer.
:mod:`torch_edl.checkpoint.reader` restores the files of any number of shards into any number of
shards. If writing fails, the creator of the folder removes it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32
from safetensors import SafetensorError, safe_open

from torch_edl import _core
from torch_edl.errors import CheckpointError
from torch_edl.tables.table import EmbeddingTable, TableRows, storage_dtype
from torch_edl.typed_json import MOST_BYTES, Count, convert, parse

Array = npt.NDArray[Any]

PART_BYTES = 128 << 20
"""Size of a file with rows of a table, and the memory that writing it takes, in bytes."""

_SHOWN_CHARACTERS = 300
_PIECE = 4 << 20  # bytes written before waiting for the disk

TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Names of the safetensors types in numpy and torch; numpy lacks some of them."""
NAMES = {name: in_file for in_file, name in TYPES.items()}
STEM = "shard-0-of-1"
"""Prefix of the files that one worker writes, with the whole model; see
:mod:`torch_edl.pytorch.replica` and :mod:`tf_compat.replica`."""
MODEL_FILE = f"{STEM}.dense.safetensors"
OPTIMIZER_FILE = f"{STEM}.optimizer.safetensors"
_CRC = "crc32"  # metadata: JSON of tensor name -> CRC-32 of its bytes
_HEADER_CRC = "header_crc32"  # metadata: CRC-32 of all other metadata, types and shapes


class OptimizerHeader(TypedDict):
    """The parts of a worker's checkpoint that are not tensors."""

    position: dict[str, Any]
    """Position in the data; see :class:`~torch_edl.engine.replica.Position`."""
    optimizers: list[Any]
    """Non-tensor state of each torch optimizer; empty for a model of Keras."""
    stateful: list[Any]
    """State of schedulers and scalers of torch."""
    extra: NotRequired[dict[str, Any]]
    """Non-tensor state of each further object of a script, by its name."""
    keras: NotRequired[str]
    """Class of the Keras optimizer; absent if a torch model wrote the header."""


class _Entry(TypedDict):
    """A tensor in the header of a file."""

    dtype: str
    shape: list[Count]
    data_offsets: list[Count]


@dataclass(frozen=True)
class Tensor:
    """A tensor of any type, as its bytes are stored in a file."""

    dtype: str
    """Name of the type in safetensors: ``F32``, ``BF16``, ..."""
    shape: tuple[int, ...]
    content: npt.NDArray[np.uint8]
    """Bytes of the values, (bytes,)."""

    @classmethod
    def of(cls, name: str, array: Array) -> Tensor:
        """Return the tensor of a numpy array.

        Raises:
            CheckpointError: the array has a type that is not supported.
        """
        if array.dtype.name not in NAMES:
            raise CheckpointError(
                f"{name}: {array.dtype.name} cannot be written; use {', '.join(NAMES)}"
            )
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(NAMES[array.dtype.name], array.shape, content)


def header(
    layout: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> bytes:
    """Return the header of a safetensors file.

    Args:
        layout: name to (name of the type in safetensors, shape, bytes), in the order of the data:
            larger types first, so that each tensor begins at a multiple of the size of its type.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (dtype, shape, size) in layout.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(
    path: Path,
    tensors: Mapping[str, Array | Tensor],
    metadata: Mapping[str, str],
    *,
    steadily: bool = False,
) -> int:
    """Write tensors, larger types first. Returns the size of the file in bytes.

    Args:
        steadily: wait for the disk after every few megabytes. Otherwise the disk receives the whole
            file at once, and appends to other files wait meanwhile (80 ms, measured on 128 MB). The
            caller forces the file to the disk in the end.

    Raises:
        CheckpointError: an array has a type that is not supported.
        OSError: the disk is full or read-only.
    """

    def item_size(named: tuple[str, Tensor]) -> int:
        return named[1].content.size // max(1, math.prod(named[1].shape))

    given = ((n, t if isinstance(t, Tensor) else Tensor.of(n, t)) for n, t in tensors.items())
    found = dict(sorted(given, key=item_size, reverse=True))  # stable
    crcs = {name: crc32(tensor.content.data) for name, tensor in found.items()}
    layout = {n: (t.dtype, t.shape, t.content.size) for n, t in found.items()}
    about = {**metadata, _CRC: json.dumps(crcs)}
    described = {name: (dtype, shape) for name, (dtype, shape, _) in layout.items()}
    with open(path, "wb") as file:
        file.write(header(layout, {**about, _HEADER_CRC: _header_crc(described, about)}))
        for tensor in found.values():
            for start in range(0, tensor.content.size, _PIECE):
                piece = tensor.content[start : start + _PIECE]
                file.write(piece.data)
                if steadily:
                    file.flush()
                    _core.write_back(file.fileno(), file.tell() - piece.size, piece.size)
        return file.tell()


@dataclass(frozen=True)
class _Header:
    """The checked header of a file."""

    metadata: dict[str, str]
    crcs: dict[str, int]
    """Checksums of tensors, by name; empty if the file has none."""
    entries: dict[str, _Entry]
    data: int
    """Position of the data in the file."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, _Header]]:
    """Return a context with an open file and its header.

    Raises:
        CheckpointError: the file is missing, not a safetensors file, its header has changed, or an
            error occurred while it was read.
    """
    try:
        with safe_open(path, "np") as checked:  # offsets and sizes
            about = checked.metadata() or {}
        crc = about.pop(_HEADER_CRC, None)
        with open(path, "rb") as file:
            entries, data = _entries(file)
            described = {name: (each["dtype"], each["shape"]) for name, each in entries.items()}
            if crc is not None and _header_crc(described, about) != crc:
                raise _damaged(path, "the header")
            crcs = parse(about.get(_CRC, "{}"), dict[str, Count])
            yield file, _Header(about, crcs, entries, data)
    except (SafetensorError, OSError, ValueError) as error:
        text = str(error)[:_SHOWN_CHARACTERS]  # safetensors quotes wrong values whole
        raise CheckpointError(f"{path}: cannot be read: {text}; it is damaged") from None


def metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file, without its tensors.

    Raises:
        CheckpointError: the file is missing, not a safetensors file, or its header has changed.
    """
    with _opened(path) as (_, header):
        return header.metadata


def _header_crc(described: Mapping[str, Sequence[Any]], metadata: Mapping[str, str]) -> str:
    """Return the checksum of types and shapes by tensor, and of the metadata."""
    return str(crc32(json.dumps([described, metadata], sort_keys=True).encode()))


def read_tensors(path: Path, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file, or those in ``names`` that it has; checksums are verified if
    the file has them.

    Raises:
        CheckpointError: the file is missing, not a safetensors file, or its bytes have changed.
    """
    return _read(path, names)[1]


def _read(path: Path, names: Collection[str] | None) -> tuple[_Header, dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    with _opened(path) as (file, header):
        for name, entry in header.entries.items():
            if names is not None and name not in names:
                continue
            start, stop = entry["data_offsets"]
            file.seek(header.data + start)
            content = np.fromfile(file, np.uint8, stop - start)
            tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), content)
    for name, crc in header.crcs.items():
        if names is not None and name not in names:
            continue
        if name not in tensors or crc32(tensors[name].content.data) != crc:
            raise _damaged(path, name)
    return header, tensors


def read_rows(path: Path, name: str, rows: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield a float32 matrix of a file, ``rows`` rows at a time. Its checksum is verified after the
    last rows.

    Raises:
        CheckpointError: the file has no such matrix, or is damaged.
    """
    crc = 0
    with _opened(path) as (file, header):
        if name not in header.entries:
            raise CheckpointError(f"{path}: no tensor {name!r}; it is damaged")
        entry = header.entries[name]
        count, dim = entry["shape"]
        if entry["dtype"] != "F32":
            raise CheckpointError(f"{path}: {name} has the type {entry['dtype']}, not F32")
        file.seek(header.data + entry["data_offsets"][0])
        for start in range(0, count, rows):
            size = min(rows, count - start)
            piece = np.fromfile(file, np.float32, size * dim).reshape(size, dim)
            crc = crc32(piece.data, crc)
            yield piece
    if header.crcs.get(name, crc) != crc:
        raise _damaged(path, name)


def _entries(file: BinaryIO) -> tuple[dict[str, _Entry], int]:
    """Return the entries of the header by name of the tensor, and the position of the data."""
    size = int.from_bytes(file.read(8), "little")
    entries = parse(file.read(min(size, MOST_BYTES + 1)), dict[str, Any])
    entries.pop("__metadata__", None)
    return convert(entries, dict[str, _Entry]), 8 + size


def _damaged(path: Path, name: str) -> CheckpointError:
    return CheckpointError(f"{path}: the checksum of {name} does not match; it is damaged")


def read(path: Path, names: Collection[str] | None = None) -> dict[str, Array]:
    """Return the tensors of a file as arrays; see :func:`read_tensors`.

    numpy has no bfloat16: such tensors are read as float32, which changes no value.

    Raises:
        CheckpointError: the file is damaged, or a tensor has a type that numpy does not have.
    """
    return _arrays(path, read_tensors(path, names))


def _arrays(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == "BF16":  # the upper half of a float32
            halves = tensor.content.view("<u2").astype(np.uint32)
            arrays[name] = (halves << 16).view(np.float32).reshape(tensor.shape)
            continue
        try:
            arrays[name] = tensor.content.view(TYPES[tensor.dtype]).reshape(tensor.shape)
        except (KeyError, TypeError):
            raise CheckpointError(
                f"{path}: {name} has the type {tensor.dtype}, which numpy lacks"
            ) from None
    return arrays


# ---- the dense values and the rows of a shard ----


def write_shard(
    dense: Callable[[], Mapping[str, Array]],
    tables: Sequence[tuple[EmbeddingTable, int]],
    directory: Path,
    stem: str,
    after_file: Callable[[Path], None] = lambda path: None,
    *,
    steadily: bool = False,
) -> dict[str, int]:
    """Write a shard whose snapshots have begun; see :func:`write_tables`.

    Args:
        dense: returns the dense values, see :meth:`DenseShard.begin_snapshot`.
    """
    values = dense()  # first: until then, pushes copy each value that they change
    sizes = write_tables(tables, directory, stem, after_file, steadily=steadily)
    path = directory / f"{stem}.dense.safetensors"
    sizes[path.name] = write(path, values, {}, steadily=steadily)
    after_file(path)
    return sizes


def read_dense(path: Path) -> dict[str, Array]:
    """Return the dense parameters, slots and steps in a file by name.

    A file of an earlier version has one number of updates for all parameters in its header. This
    number is returned as the step of each parameter.

    Raises:
        CheckpointError: the file is damaged; see :func:`read`.
    """
    header, tensors = _read(path, None)
    values = _arrays(path, tensors)
    if "step" not in header.metadata:
        return values
    try:
        step = np.array(parse(header.metadata["step"], Count))
    except ValueError as error:
        raise CheckpointError(f"{path}: the number of updates: {error}") from None
    return {f"{name}@step": step for name in values if "@" not in name} | values


def write_tables(
    tables: Sequence[tuple[EmbeddingTable, int]],
    directory: Path,
    stem: str,
    after_file: Callable[[Path], None] = lambda path: None,
    *,
    steadily: bool = False,
) -> dict[str, int]:
    """Write tables whose snapshots have begun, each with its step. Returns file sizes by name.

    Args:
        after_file: called with each file; an exception ends the snapshots.
        steadily: see :func:`write`.

    Raises:
        OSError: the disk is full or read-only.
    """
    written: dict[str, int] = {}
    try:
        for index, (table, step) in enumerate(tables):
            counts = table.snapshot_counts(PART_BYTES // 24)
            for kind, parts in (("counts", counts), ("part", _parts(table))):
                for number, part in enumerate(parts):
                    path = directory / f"{stem}.table-{index}.{kind}-{number}.safetensors"
                    about = _about(table, step)
                    written[path.name] = write(path, vars(part), about, steadily=steadily)
                    after_file(path)
    finally:
        # Pushes copy rows as long as a snapshot is open.
        for table, _ in tables:
            table.core.end_snapshot()
    return written


def _parts(table: EmbeddingTable) -> Iterator[TableRows]:
    """Yield the rows in parts; an empty part for an empty table, since a file must describe it."""
    dim, slots, empty = table.dim, len(table.slot_names), True
    for rows in table.snapshot_rows(max(1, PART_BYTES // (4 * dim * (1 + slots) + 24))):
        if len(rows.ids):
            empty = False
            yield rows
    if empty:
        none = np.empty(0, np.int64)
        vectors, no_slots = np.empty((0, dim), np.float32), np.empty((0, slots, dim), np.float32)
        yield TableRows(none, vectors, no_slots, none, none)


def _about(table: EmbeddingTable, step: int) -> dict[str, str]:
    info = table.info
    about = {
        "dim": info.dim,
        "num_embeddings": info.num_embeddings,
        "initializer": {"kind": info.initializer.kind, "args": dict(info.initializer.args)},
        "seed": table.seed,
        "storage_dtype": storage_dtype(info),
        "modules": list(info.modules) or [info.name],
    }
    return {
        "table": info.name,
        "step": str(step),
        "slots": json.dumps(table.slot_names),
        "info": json.dumps(about),
    }


# ---- the files that a worker writes, with the state of its optimizers ----


def begin_snapshots(tables: Sequence[tuple[EmbeddingTable, int]]) -> None:
    """Begin snapshots of tables, and end those of an earlier copy that was never written."""
    for table, _ in tables:
        table.core.end_snapshot()
        table.core.begin_snapshot()


def write_replica(
    folder: Path,
    tables: Sequence[tuple[EmbeddingTable, int]],
    model: Mapping[str, Array | Tensor],
    slots: Mapping[str, Array | Tensor],
    header: Mapping[str, Any],
) -> dict[str, int]:
    """Write the whole model of a worker; return the size of each file in bytes, by name.

    Args:
        tables: tables whose snapshots have begun, each with its step.
        header: see :func:`optimizer_header`.
    """
    return {
        **write_tables(tables, folder, STEM),
        MODEL_FILE: write(folder / MODEL_FILE, model, {"format": "pt"}),
        OPTIMIZER_FILE: write(folder / OPTIMIZER_FILE, slots, {"state": json.dumps(header)}),
    }


def optimizer_header(folder: Path) -> OptimizerHeader:
    """Return the parts of a worker's checkpoint that are not tensors.

    Raises:
        CheckpointError: the folder holds something else.
    """
    file = folder / OPTIMIZER_FILE
    try:  # a scheduler may have infinite numbers
        return parse(metadata(file).get("state", ""), OptimizerHeader, finite=False)
    except ValueError as error:
        raise CheckpointError(f"{file}: not the state of optimizers: {error}") from error
