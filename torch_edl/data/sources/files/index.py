"""The index of a file: where its blocks are, and how many records each has; found once, cached."""

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

from torch_edl.config.environment import edl_home
from torch_edl.data.sources.base import Stamp
from torch_edl.data.sources.storage import objects
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.files import replacing

log = logging.getLogger(__name__)

MIN_CACHED_BYTES = 1 << 20
"""Smaller files are scanned each time: it is as fast, and leaves no litter beside them."""

_INDEX_VERSION = 5  # raise it when an index of the old code would mislead the new


@dataclass(frozen=True)
class Index:
    """The blocks of a file. A block is what is read and decoded at once (a chunk, a row group)."""

    blocks: npt.NDArray[np.int64]
    """(n, 3): where each block begins (a byte, or the number of the row group), how many bytes it
    has, and how many usable records, at least 1."""
    damaged: int = 0
    """What was left out."""
    details: dict[str, Any] = field(default_factory=dict)
    """What else the format found out (dialect, columns); JSON values."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int]], damaged: int = 0, **details: Any) -> Index:
        """An index of ``(offset, length, count)`` blocks; those without records are left out."""
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
    """The index of ``path``: from the cache if it is of this very content, else by ``scan``.

    The cache is a small file beside the data, or under ``edl_home()/cache`` where that folder is
    not writable or the data is behind a URL. One that is stale, damaged or unreadable is made anew.

    Args:
        path: absolute path or URL of the data file.
        kind: format of the file; each has its own cache, and so has ``skip_damaged``.
        skip_damaged: whether ``scan`` leaves damage out.
        scan: makes the index of the opened file in one pass.
        sequential: that pass reads the file from its start to its end.

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
    if objects.is_url(path):
        return [home]
    folder, name = os.path.split(path)
    return [os.path.join(folder, f".{name}.{kind}.edl-index"), home]


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
        blocks = np.frombuffer(body, "<i8").reshape(-1, 3)
        return Index(blocks.astype(np.int64), found["damaged"], found["details"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Not there, or damaged: both mean that the data is scanned.


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
