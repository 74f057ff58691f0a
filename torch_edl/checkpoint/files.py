"""Safetensors files, written without a copy in memory and read with a check of their bytes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from torch_edl.errors import CheckpointError

Array = npt.NDArray[Any]

# The types of torch models that numpy has, too.
_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_CRC = "crc32"  # metadata: JSON of tensor name -> CRC-32 of its bytes


def header(layout: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The header of a safetensors file.

    Args:
        layout: name to (numpy dtype name, shape), in the order of the data: larger types first, so
            that each tensor begins at a multiple of the size of its type.

    Raises:
        CheckpointError: a type that is not supported.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (dtype, shape) in layout.items():
        if dtype not in _NAMES:
            raise CheckpointError(f"{name}: {dtype} cannot be written; use {', '.join(_NAMES)}")
        stop = start + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        entries[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> int:
    """Writes arrays, larger types first; returns the size of the file in bytes.

    Raises:
        CheckpointError: an array has a type that is not supported.
        OSError: the disk is full or read-only; the file is removed.
    """
    # sorted() is stable.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    crcs = {name: zlib.crc32(_bytes(array)) for name, array in tensors.items()}
    layout = {n: (a.dtype.name, a.shape) for n, a in tensors.items()}
    try:
        with open(path, "wb") as file:
            file.write(header(layout, {**metadata, _CRC: json.dumps(crcs)}))
            for array in tensors.values():
                file.write(_bytes(array))
            return file.tell()
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, without its tensors.

    Raises:
        CheckpointError: the file is missing or not a safetensors file.
    """
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; it is damaged") from None


def read(path: Path) -> dict[str, Array]:
    """All tensors of a file; checksums are verified where the file has them.

    numpy has no bfloat16: such tensors are read as float32, which changes no value.

    Raises:
        CheckpointError: the file is missing, not a safetensors file, or its bytes have changed.
    """
    try:
        with safe_open(path, "np") as file:
            crcs = json.loads((file.metadata() or {}).get(_CRC, "{}"))
            names = list(file.keys())
            wide = [n for n in names if file.get_slice(n).get_dtype() == "BF16"]
            tensors = {name: file.get_tensor(name) for name in names if name not in wide}
        tensors |= _widened(path, wide)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; it is damaged") from None
    for name, crc in crcs.items():
        if name not in tensors or zlib.crc32(_bytes(tensors[name])) != crc:
            raise CheckpointError(f"{path}: the checksum of {name} does not match; it is damaged")
    return tensors


def _widened(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Tensors of bfloat16, the upper half of a float32, as float32."""
    if not names:
        return {}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(size))
        found: dict[str, Array] = {}
        for name in names:
            start, stop = entries[name]["data_offsets"]
            file.seek(8 + size + start)
            halves = np.frombuffer(file.read(stop - start), "<u2").astype(np.uint32)
            found[name] = (halves << 16).view(np.float32).reshape(entries[name]["shape"])
    return found
