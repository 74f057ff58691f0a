"""Sources: data of all kinds, read by record index, and found by path, suffix, magic number or
scheme. A source maps record i to bytes or rows. This package has no torch, tasks or shuffling."""

from __future__ import annotations

from torch_edl.data.sources.base import IndexedSource, as_table, concat, cut, release_unused, take
from torch_edl.data.sources.opening import (
    check_source,
    of_each,
    open_source,
)
from torch_edl.data.sources.paths import expand, parts
from torch_edl.interfaces import Metadata, Records, Source

__all__ = [
    "IndexedSource",
    "Metadata",
    "Records",
    "Source",
    "as_table",
    "concat",
    "cut",
    "expand",
    "check_source",
    "of_each",
    "open_source",
    "parts",
    "release_unused",
    "take",
]
