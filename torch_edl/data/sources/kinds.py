"""Kinds of data: formats of files, found by suffix, and schemes of URLs.

Four formats are built in. All other kinds are entry points (:mod:`torch_edl.interfaces`).
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from torch_edl.config.extensions import SOURCES, extras_of, installed, load
from torch_edl.data.sources.storage import objects
from torch_edl.errors import UsageError
from torch_edl.interfaces import SourceType

_BUILT_IN = {
    "recordio": "recordio.RecordIOSource",
    "rio": "recordio.RecordIOSource",
    "tfrecord": "tfrecord.TFRecordSource",
    "tfrecords": "tfrecord.TFRecordSource",
    "csv": "csv.CsvSource",
    "tsv": "csv.CsvSource",
    "tab": "csv.CsvSource",
    "parquet": "parquet.ParquetSource",
    "pq": "parquet.ParquetSource",
}
_ANY_SCHEME = "*"
"""Name of an entry point for URLs of all schemes: ``(url) -> SourceType | None``."""


def formats() -> list[str]:
    """Return the suffixes of all installed formats, which are the values of ``--format``."""
    return [*_BUILT_IN, *(name[1:] for name in installed(SOURCES) if name.startswith("."))]


def suffix_of(path: str) -> str:
    """Return the last suffix in a name that is a known format; empty: none.

    The suffix need not be at the end: train.tfrecord-00000-of-00010, part-0.snappy.parquet,
    day.csv.1.
    """
    parts = re.split(r"[.\-]", os.path.basename(path).lower())[1:]
    return next((p for p in reversed(parts) if p in _BUILT_IN or f".{p}" in installed(SOURCES)), "")


def file_type(format: str) -> SourceType:
    """Import and return the type of sources of a format. Formats are imported at their first use,
    since importing pyarrow takes 0.2 s.

    Raises:
        UsageError: the format is unknown, or a library is missing.
    """
    if built_in := _BUILT_IN.get(format):
        module, _, name = built_in.partition(".")
        found = importlib.import_module(f"torch_edl.data.sources.files.{module}")
        return getattr(found, name)  # type: ignore[no-any-return]
    if f".{format}" not in installed(SOURCES):
        raise UsageError(f"data format {format!r}: choose one of auto, {', '.join(formats())}")
    return load(SOURCES, f".{format}", f"data format {format}")  # type: ignore[no-any-return]


def is_other(path: str) -> bool:
    """Return True if a path is the URL of a database or a stream, not of files."""
    return bool(_entry_of(path))


def url_type(url: str) -> Any:
    """Return the type of the sources of a URL; see :class:`~torch_edl.interfaces.UrlSource`.

    Raises:
        UsageError: a library is missing.
    """
    what = f"data of {url.partition('://')[0]}://..."
    name = _entry_of(url)
    found = load(SOURCES, name, what)
    return found(url) if name == _ANY_SCHEME else found


def is_stream(path: str) -> bool:
    """Return True if a path is the URL of an endless stream."""
    return is_other(path) and url_type(path).endless


def is_object(path: str) -> bool:
    """Return True if a path is the URL of one file or several."""
    return objects.is_url(path) and not is_other(path)


def extras(path: str) -> set[str]:
    """Return the extras of torch-edl with the packages that read a path."""
    if name := _entry_of(path):
        return extras_of(SOURCES, name)
    return extras_of(SOURCES, f".{suffix_of(path)}") | objects.extras_of_url(path)


def _entry_of(path: str) -> str:
    """Return the name of the entry point for a URL; empty: the data is in files."""
    scheme, separator, _ = path.partition("://")
    if not separator:
        return ""
    name = scheme.partition("+")[0]
    if name in installed(SOURCES):
        return name
    if _ANY_SCHEME in installed(SOURCES) and load(SOURCES, _ANY_SCHEME, path)(path) is not None:
        return _ANY_SCHEME
    return ""
