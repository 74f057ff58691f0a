"""Safetensors files, written without a copy in memory and read with a check of their bytes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from torch_edl.errors import CheckpointError

Array = npt.NDArray[Any]

_NAMES = {"float32": "F32", "int64": "I64"}
_CRC = "crc32"  # metadata: JSON of tensor name -> CRC-32 of its bytes


def header(layout: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """What a safetensors file begins with.

    Args:
        layout: name to (numpy dtype name, shape), in the order of the data; int64 before float32,
            so that each begins at a multiple of its size.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name, (dtype, shape) in layout.items():
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
    """Writes C-contiguous float32 and int64 arrays, int64 first; returns the size in bytes.

    Raises:
        OSError: the disk refused; nothing is left of the file.
    """
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
        CheckpointError: it is missing or no safetensors file.
    """
    try:
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; it is damaged") from None


def read(path: Path) -> dict[str, Array]:
    """All tensors of a file; their checksum is compared where the file has one.

    Raises:
        CheckpointError: it is missing, no safetensors file, or its bytes have changed.
    """
    try:
        with safe_open(path, "np") as file:
            crcs = json.loads((file.metadata() or {}).get(_CRC, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; it is damaged") from None
    for name, crc in crcs.items():
        if name not in tensors or zlib.crc32(_bytes(tensors[name])) != crc:
            raise CheckpointError(f"{path}: the checksum of {name} does not match; it is damaged")
    return tensors
