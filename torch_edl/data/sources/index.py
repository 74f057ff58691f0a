"""Where the records of a file are: found in one pass, then cached.

The cache is a small file beside the data, or under ``edl_home()/cache`` where that folder is not
writable. It is only ever a shortcut: one that is stale, damaged or unreadable is made anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl.data.sources.files import DataFile, Stamp
from torch_edl.environment import edl_home
from torch_edl.files import replacing

log = logging.getLogger(__name__)

VERSION = 2
"""Part of the cache's key: raise it when an index of the old code would mislead the new."""

MIN_CACHED_BYTES = 1 << 20
"""Smaller files are scanned each time: it is as fast, and leaves no litter beside them."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Index:
    """The blocks of a file. A block is what is read and decoded at once (a chunk, a row group)."""

    offsets: Int64s
    """Where each block begins: a byte, or the number of the row group."""
    lengths: Int64s
    """How long it is in bytes."""
    counts: Int64s
    """Usable records in it, at least 1."""
    damaged: int = 0
    """What was left out."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else the format found out (dialect, columns); JSON values."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int]], damaged: int = 0, **details: Any) -> Index:
        """An index of ``(offset, length, count)`` blocks; those without records are left out."""
        rows = [block for block in blocks if block[2]]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return cls(columns[0], columns[1], columns[2], damaged, details)


def cached(
    path: str, kind: str, skip_damaged: bool, scan: Callable[[DataFile], Index]
) -> tuple[Index, Stamp]:
    """The index of ``path``: from the cache if it is of this very content, else by ``scan``.

    Args:
        path: absolute path of the data file.
        kind: format of the file; each has its own cache, and so has ``skip_damaged``.
        skip_damaged: whether ``scan`` leaves damage out.
        scan: makes the index of the opened file in one pass.

    Raises:
        DataError: the file cannot be read, or ``scan`` found damage.
    """
    with DataFile(path) as file:
        stamp = file.stamp
        if file.size < MIN_CACHED_BYTES:
            return scan(file), stamp
        key = {
            "path": path,
            "kind": kind,
            "skip_damaged": skip_damaged,
            "version": VERSION,
            **asdict(stamp),
        }
        places = _places(path, f"{kind}{'-skip' if skip_damaged else ''}")
        for place in places:
            index = _load(place, key)
            if index is not None:
                return index, stamp
        index = scan(file)
    for place in places:
        if _save(place, key, index):
            break
    return index, stamp


def _places(path: str, kind: str) -> tuple[str, str]:
    folder, name = os.path.split(path)
    hashed = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return (
        os.path.join(folder, f".{name}.{kind}.edl-index"),
        str(edl_home() / "cache" / f"{hashed}.{kind}.edl-index"),
    )


def _load(place: str, key: dict[str, Any]) -> Index | None:
    """The index in ``place`` if it is whole and has this key."""
    try:
        with open(place, "rb") as file:
            checksum, _, content = file.read().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(content):
            return None
        head, _, body = content.partition(b"\n")
        found = json.loads(head)
        if found["key"] != key:
            return None
        columns = np.frombuffer(body, "<i8").reshape(3, -1).astype(np.int64)
        return Index(columns[0], columns[1], columns[2], found["damaged"], found["details"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Not there, or damaged: both mean that the data is scanned.


def _save(place: str, key: dict[str, Any], index: Index) -> bool:
    body = np.stack([index.offsets, index.lengths, index.counts]).astype("<i8").tobytes()
    head = {"key": key, "damaged": index.damaged, "details": index.details}
    content = json.dumps(head).encode() + b"\n" + body
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with replacing(place) as file:
            file.write(b"%08x\n" % zlib.crc32(content) + content)
    except OSError as error:
        log.debug("no index cached in %s: %s", place, error)
        return False
    return True
