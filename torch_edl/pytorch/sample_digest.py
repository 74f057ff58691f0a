"""A digest of a dataset's stored data, which differs for another order of its samples.

The digest covers the data stored for each sample: the indices of a ``Subset``, tensors, arrays,
lists, tables. No sample is read, since ``__getitem__`` may augment a sample at random, or open a
file that the processes of a ``DataLoader`` must not inherit.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_ROWS, _VALUES, _LENGTH = 64, 16, 1024  # limits: samples, values in a sample, characters of a text
_PARTS, _DEPTH = 64, 6  # limits: parts of an object, and levels of nested objects

# The first digest of each dataset, which a cache that the dataset fills later must not change.
_known: dict[int, tuple[weakref.ref[Any], str]] = {}


def sample_digest(dataset: Any) -> str:
    """Return the digest of the first, the last and some other samples of a dataset; empty if the
    dataset stores no data for each sample.

    Floats are rounded coarsely, since processors round differently. Paths are reduced to their last
    component.

    Args:
        dataset: a dataset with ``__len__`` and ``__getitem__``.
    """
    key = id(dataset)
    reference, digest = _known.get(key, (None, ""))
    if reference is not None and reference() is dataset:
        return digest
    found = list(_stored(dataset, len(dataset), set()))
    digest = hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest() if found else ""
    with contextlib.suppress(TypeError):  # a list has no weak references, and caches nothing
        _known[key] = weakref.ref(dataset, lambda _: _known.pop(key, None)), digest
    return digest


def _stored(value: Any, count: int, outer: set[int]) -> Iterator[Any]:
    """Yield the data stored for some of ``count`` samples: in a dataset, in its attributes, or in
    the datasets that it consists of.

    Args:
        outer: ids of the objects that contain ``value``.
    """
    if _length(value) == count and (rows := _rows(value, count)) is not None:
        yield rows
        return
    parts: Any = ()
    if isinstance(value, list | tuple | Mapping):
        parts = value
    elif hasattr(value, "__getitem__") and not isinstance(value, torch.nn.Module):
        count, parts = _length(value), getattr(value, "__dict__", {})
    if len(parts) > _PARTS or len(outer) == _DEPTH or id(value) in outer:
        return
    for name, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
        for found in _stored(part, count, outer | {id(value)}):
            yield name, found


def _length(value: Any) -> int:
    """Return the number of items; -1 for a text, a mapping, or a value without a length."""
    if isinstance(value, str | bytes | Mapping):
        return -1
    try:
        return len(value)
    except Exception:  # any object may raise, such as a closed file
        return -1


def _rows(value: Any, count: int) -> Any:
    """Return the values of some samples; None if the type of ``value`` is not supported."""
    at = some(count, _ROWS)
    package = type(value).__module__.partition(".")[0]
    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    if is_tensor or isinstance(value, list | tuple | range | np.ndarray):
        return [plain(value[place]) for place in at]
    if package == "pandas" and hasattr(value, "iloc"):
        return [plain(row) for row in value.iloc[at].to_numpy()]
    if package in ("pyarrow", "datasets") and hasattr(value, "slice"):
        return [plain(value.slice(place, 1).to_pylist()) for place in at]
    return None


def plain(value: Any) -> Any:
    """Return some of the values in a sample, as numbers and texts."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        flat = value.detach().reshape(-1)
        return [*value.shape, *(plain(flat[at].item()) for at in some(len(flat), _VALUES))]
    if isinstance(value, np.ndarray):
        row = value.reshape(-1)
        return [*value.shape, *map(plain, row[some(len(row), _VALUES)].tolist())]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        # Steps of 5%, and of 0.00005 near 0. The offset keeps borders away from common numbers.
        finite = math.isfinite(value)
        return math.floor(math.asinh(1000 * value) * 20 + 0.3137) if finite else str(value)
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)[-_LENGTH:].rpartition("/")[2]
    if isinstance(value, bytes):
        return len(value), value[:_LENGTH]
    if isinstance(value, list | tuple):
        return [len(value), *(plain(value[place]) for place in some(len(value), _VALUES))]
    if isinstance(value, Mapping):
        return [(str(key), plain(value[key])) for key in list(value)[:_VALUES]]
    return value if isinstance(value, int | None) else type(value).__name__


def some(count: int, most: int) -> list[int]:
    """Return the first, the last and some other indices below ``count``; at most ``most``."""
    return sorted({int(place) for place in np.linspace(0, count - 1, min(most, count))})
