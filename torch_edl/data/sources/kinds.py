"""Kinds of data: formats of files, found by suffix, and schemes of URLs.

Four formats are built in. All other kinds are entry points (:mod:`torch_edl.interfaces`).
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from torch_edl.config.extensions import SOURCES, STORAGES, extras_of, installed, load
from torch_edl.data.sources.base import is_url
from torch_edl.errors import UsageError
from torch_edl.interfaces import SourceType
from torch_edl.interfaces.source import Storage

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
"""Name of an entry point for URLs of all schemes: ``(url) -> SourceType | None``, or a store."""


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


def url_type(url: str) -> Any:
    """Return the type of the sources of a URL, see :class:`~torch_edl.interfaces.UrlSource`; None
    if the data is in files.

    Raises:
        UsageError: a library is missing.
    """
    name = _scheme_of(url)
    if not name:
        return _of_any_scheme(url)
    return load(SOURCES, name, f"data of {url.partition('://')[0]}://...")


def is_stream(path: str) -> bool:
    """Return True if a path is the URL of an endless stream."""
    found = url_type(path)
    return found is not None and found.endless


def storage_of(url: str) -> Storage:
    """Return the kind of store that has the file of a URL.

    Raises:
        UsageError: no installed package knows the store.
    """
    name = _storage_of(url)
    return load(STORAGES, name, f"data of {name}://...")  # type: ignore[no-any-return]


def is_object(path: str) -> bool:
    """Return True if a path is the URL of one file or several."""
    return is_url(path) and not _scheme_of(path) and _of_any_scheme(path) is None


def extras(path: str) -> set[str]:
    """Return the extras of torch-edl with the packages that read a path."""
    name = _scheme_of(path)
    if not name and _of_any_scheme(path) is not None:
        name = _ANY_SCHEME
    if name:
        return extras_of(SOURCES, name)
    found = extras_of(SOURCES, f".{suffix_of(path)}")
    return found | extras_of(STORAGES, _storage_of(path)) if is_url(path) else found


def _storage_of(url: str) -> str:
    """Return the name of the entry point for the store of a URL."""
    scheme = url.partition("://")[0].lower()
    return scheme if scheme in installed(STORAGES) else _ANY_SCHEME


def _scheme_of(path: str) -> str:
    """Return the name of the entry point for the scheme of a URL; empty: there is none."""
    scheme, separator, _ = path.partition("://")
    name = scheme.partition("+")[0]
    return name if separator and name in installed(SOURCES) else ""


def _of_any_scheme(path: str) -> Any:
    """Return the type of sources that the entry point for all schemes knows for a path, or None."""
    if "://" not in path or _ANY_SCHEME not in installed(SOURCES):
        return None
    return load(SOURCES, _ANY_SCHEME, path)(path)
