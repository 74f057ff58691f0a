"""Safetensors files, written without a copy in memory and read with a check of their bytes."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from torch_edl.errors import CheckpointError

Array = npt.NDArray[Any]

# numpy has no bfloat16: see :func:`read`.
_NUMPY = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
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
_NAMES = {numpy: name for name, numpy in _NUMPY.items()}
_CRC = "crc32"  # metadata: JSON of tensor name -> CRC-32 of its bytes


@dataclass(frozen=True)
class Tensor:
    """A tensor of any type, as its bytes are in a file."""

    dtype: str
    """Name of the type in safetensors: ``F32``, ``BF16``, ..."""
    shape: tuple[int, ...]
    content: npt.NDArray[np.uint8]
    """(bytes,)"""

    @classmethod
    def of(cls, name: str, array: Array) -> Tensor:
        """An array of numpy.

        Raises:
            CheckpointError: the array has a type that is not supported.
        """
        if array.dtype.name not in _NAMES:
            raise CheckpointError(
                f"{name}: {array.dtype.name} cannot be written; use {', '.join(_NAMES)}"
            )
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return cls(_NAMES[array.dtype.name], array.shape, content)


def header(
    layout: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> bytes:
    """The header of a safetensors file.

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


def write(path: Path, tensors: Mapping[str, Array | Tensor], metadata: Mapping[str, str]) -> int:
    """Writes tensors, larger types first; returns the size of the file in bytes.

    Raises:
        CheckpointError: an array has a type that is not supported.
        OSError: the disk is full or read-only; the file is removed.
    """
    found = {n: t if isinstance(t, Tensor) else Tensor.of(n, t) for n, t in tensors.items()}
    # sorted() is stable.
    found = dict(sorted(found.items(), key=lambda item: -_item_size(item[1])))
    crcs = {name: zlib.crc32(tensor.content.data) for name, tensor in found.items()}
    layout = {n: (t.dtype, t.shape, t.content.size) for n, t in found.items()}
    try:
        with open(path, "wb") as file:
            file.write(header(layout, {**metadata, _CRC: json.dumps(crcs)}))
            for tensor in found.values():
                file.write(tensor.content.data)
            return file.tell()
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _item_size(tensor: Tensor) -> int:
    return tensor.content.size // max(1, math.prod(tensor.shape))


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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file; checksums are verified where the file has them.

    Raises:
        CheckpointError: the file is missing, not a safetensors file, or its bytes have changed.
    """
    about = metadata(path)  # also checks the header
    tensors: dict[str, Tensor] = {}
    try:
        crcs = json.loads(about.get(_CRC, "{}"))
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            entries = json.loads(file.read(size))
            for name, entry in entries.items():
                if name == "__metadata__":
                    continue
                start, stop = entry["data_offsets"]
                file.seek(8 + size + start)
                content = np.fromfile(file, np.uint8, stop - start)
                tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), content)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; it is damaged") from None
    for name, crc in crcs.items():
        if name not in tensors or zlib.crc32(tensors[name].content.data) != crc:
            raise CheckpointError(f"{path}: the checksum of {name} does not match; it is damaged")
    return tensors


def read(path: Path) -> dict[str, Array]:
    """All tensors of a file as arrays; see :func:`read_tensors`.

    numpy has no bfloat16: such tensors are read as float32, which changes no value.

    Raises:
        CheckpointError: the file is damaged, or a tensor has a type that numpy does not have.
    """
    arrays: dict[str, Array] = {}
    for name, tensor in read_tensors(path).items():
        if tensor.dtype == "BF16":  # the upper half of a float32
            halves = tensor.content.view("<u2").astype(np.uint32)
            arrays[name] = (halves << 16).view(np.float32).reshape(tensor.shape)
        elif tensor.dtype in _NUMPY:
            arrays[name] = tensor.content.view(_NUMPY[tensor.dtype]).reshape(tensor.shape)
        else:
            raise CheckpointError(f"{path}: {name} has the type {tensor.dtype}, which numpy lacks")
    return arrays
