"""The cached index of a file: the offset, length and number of records of each block."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.checkpoint.durable import replacing
from torch_edl.config.environment import edl_home
from torch_edl.data.sources.base import is_url
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.interfaces.source import Stamp

log = logging.getLogger(__name__)

MIN_CACHED_BYTES = 1 << 20
"""Minimum size of a file with a cached index. Scanning a smaller file is as fast as reading an
index."""

_INDEX_VERSION = 5  # increased when a change makes existing indexes invalid


@dataclass(frozen=True)
class Index:
    """The blocks of a file. A block is the unit of decoding (a chunk, a row group)."""

    blocks: npt.NDArray[np.int64]
    """(n, 3): offset of each block (in bytes, or the number of the row group), length in bytes, and
    number of usable records, at least 1."""
    damaged: int = 0
    """Number of damaged records or blocks, which are left out."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further results of the scan (dialect, columns), as JSON values."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int]], damaged: int = 0, **details: Any) -> Index:
        """Return an index of ``(offset, length, count)`` blocks; blocks without records are left
        out."""
        rows = [block for block in blocks if block[2]]
        return cls(np.array(rows, dtype=np.int64).reshape(-1, 3), damaged, details)


def cached(
    path: str,
    kind: str,
    skip_damaged: bool,
    scan: Callable[[DataFile], Index],
    *,
    sequential: bool = True,
) -> tuple[Index, Stamp]:
    """Return the index of a file from the cache, or from a scan if the cache does not match the
    content of the file; and the stamp of the file.

    The cache is a small file in the folder of the data, or in ``edl_home()/cache`` if that folder
    is not writable or the data is behind a URL. A stale, damaged or unreadable cache is replaced.

    Args:
        path: absolute path or URL of the data file.
        kind: format of the file; each format has its own cache.
        skip_damaged: whether ``scan`` leaves out damaged records; such an index has its own cache.
        scan: returns the index of the open file in one pass.
        sequential: True if ``scan`` reads the whole file in order.

    Raises:
        DataError: the file cannot be read, or ``scan`` found damage.
    """
    with DataFile(path) as file:
        if sequential:
            file.will_read(0, file.size)
        if file.size < MIN_CACHED_BYTES:
            return scan(file), file.stamp
        about = {"path": path, "kind": kind, "skip_damaged": skip_damaged}
        key = {**about, "version": _INDEX_VERSION, **file.stamp._asdict()}
        places = _places(path, f"{kind}{'-skip' if skip_damaged else ''}")
        found = next(filter(None, (_load(place, key) for place in places)), None)
        index = scan(file) if found is None else found
    if found is None:
        any(_save(place, key, index) for place in places)
    return index, file.stamp


def _places(path: str, kind: str) -> list[str]:
    hashed = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    home = str(edl_home() / "cache" / f"{hashed}.{kind}.edl-index")
    if is_url(path):
        return [home]
    folder, name = os.path.split(path)
    return [os.path.join(folder, f".{name}.{kind}.edl-index"), home]


def _load(place: str, key: dict[str, Any]) -> Index | None:
    """Return the index in ``place`` if it is undamaged and has this key; None otherwise."""
    try:
        with open(place, "rb") as file:
            checksum, _, content = file.read().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return None
        head, _, body = content.partition(b"\n")
        found = json.loads(head)
        if found["key"] != key:
            return None
        blocks = np.frombuffer(body, "<i8").reshape(-1, 3)
        return Index(blocks.astype(np.int64), found["damaged"], found["details"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged: the data is scanned


def _save(place: str, key: dict[str, Any], index: Index) -> bool:
    head = {"key": key, "damaged": index.damaged, "details": index.details}
    content = json.dumps(head).encode() + b"\n" + index.blocks.astype("<i8").tobytes()
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with replacing(place) as file:
            file.write(b"%08x\n" % zlib.crc32(content) + content)
    except OSError as error:
        log.debug("no index cached in %s: %s", place, error)
        return False
    return True
