"""Kinds of data, and opening of sources by path or URL.

The suffix of a file tells its format, else its first bytes do; the scheme of a URL tells whether
the data is in files. Three formats are built in. All other kinds are entry points
(:mod:`torch_edl.interfaces`).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch_edl.config.extensions import MAGIC, SOURCES, STORAGES, extras_of, installed, load
from torch_edl.data.sources.base import is_url, local
from torch_edl.data.sources.data_file import DataFile, storage_name
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Source, SourceType

_BUILT_IN = {
    "recordio": "recordio.RecordIOSource",
    "rio": "recordio.RecordIOSource",
    "csv": "csv.CsvSource",
    "tsv": "csv.CsvSource",
    "tab": "csv.CsvSource",
    "parquet": "parquet.ParquetSource",
    "pq": "parquet.ParquetSource",
}
_MAGIC = {b"PAR1": "parquet", b"\x04\x03\x02\x01": "recordio"}
_HEAD_BYTES = 512
"""Number of bytes at the start of a file in which formats look for their magic numbers."""

_ANY_SCHEME = "*"
"""Name of an entry point for URLs of all schemes: ``(url) -> SourceType | None``, or a store."""

REQUESTS = 16
"""Number of parallel requests to a store."""

T = TypeVar("T")


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
    """Import and return the type of sources of a format; raise UsageError if the format is unknown
    or a library is missing. Importing pyarrow takes 0.2 s."""
    if built_in := _BUILT_IN.get(format):
        module, _, name = built_in.partition(".")
        found = importlib.import_module(f"torch_edl.data.sources.files.{module}")
        return getattr(found, name)  # type: ignore[no-any-return]
    if f".{format}" not in installed(SOURCES):
        raise UsageError(f"data format {format!r}: choose one of auto, {', '.join(formats())}")
    return load(SOURCES, f".{format}", f"data format {format}")  # type: ignore[no-any-return]


def url_type(url: str) -> Any:
    """Return the type of the sources of a URL, see :class:`~torch_edl.interfaces.UrlSource`; None
    if the data is in files. A missing library raises UsageError."""
    name = _source_name(url)
    if name == _ANY_SCHEME:
        return load(SOURCES, name, url)(url)
    return load(SOURCES, name, f"data of {url.partition('://')[0]}://...") if name else None


def is_stream(path: str) -> bool:
    """Return True if a path is the URL of an endless stream."""
    found = url_type(path)
    return found is not None and found.endless


def is_object(path: str) -> bool:
    """Return True if a path is the URL of one file or several."""
    name = _source_name(path)
    return is_url(path) and (not name or (name == _ANY_SCHEME and url_type(path) is None))


def extras(path: str) -> set[str]:
    """Return the extras of torch-edl with the packages that read a path."""
    if not is_url(path):
        return extras_of(SOURCES, f".{suffix_of(path)}")
    if not is_object(path):
        return extras_of(SOURCES, _source_name(path))
    return extras_of(SOURCES, f".{suffix_of(path)}") | extras_of(STORAGES, storage_name(path))


def _source_name(url: str) -> str:
    """Return the name of the entry point that may know the data of a URL; empty: there is none."""
    scheme, separator, _ = url.partition("://")
    name = scheme.partition("+")[0]
    if not separator or name in installed(SOURCES):
        return name if separator else ""
    return _ANY_SCHEME if _ANY_SCHEME in installed(SOURCES) else ""


def open_source(path: str, *, format: str = "auto", skip_damaged: bool = False) -> Source:
    """Open one data file, or the data that the URL of a database names.

    Args:
        path: path or URL. The absolute path or the URL becomes the name of the source. The source
            of a database adds parameters to its URL that all processes of a job must share.
        format: suffix of a format; ``auto``: the format follows from the suffix of the file, or
            else from its first bytes.
        skip_damaged: leave out damaged records and count them; this verifies all data.

    Raises:
        UsageError: the format is unknown, or the URL is not supported.
        DataError: the file cannot be read, or the scan found damage.
    """
    if (kind := url_type(path)) is not None:
        source: Source = kind(path, skip_damaged=skip_damaged)
        return source
    path = local(path)
    if not is_url(path):
        path = os.path.abspath(path)
    return file_type(_format(path, format))(path, skip_damaged=skip_damaged)


def of_each(paths: Sequence[str], look: Callable[[str], T]) -> list[T]:
    """Return the values of ``look`` for some paths, in order. If there are objects, ``look`` is
    called in several threads, since a store answers slowly but handles parallel requests."""
    if not any(map(is_object, paths)):
        return [look(path) for path in paths]
    with ThreadPoolExecutor(REQUESTS, "sources") as pool:
        return list(pool.map(look, paths))


def check_source(path: str, *, format: str = "auto") -> None:
    """Check that :func:`open_source` can open a source: the format of a local file, the table and
    key of a database, the topic of a stream. Little is read, and records are not counted."""
    if (kind := url_type(path)) is not None:
        kind.check(path)
    elif not is_url(path):
        _format(path, format)


def _format(path: str, format: str) -> str:
    return (suffix_of(path) or _by_first_bytes(path)) if format == "auto" else format


def _by_first_bytes(path: str) -> str:
    with DataFile(path) as file:
        head = bytes(file.read_at(0, min(_HEAD_BYTES, file.size)))
    if format := _format_of(head):
        return format
    raise DataError(
        path,
        "neither its suffix nor its first bytes tell its format; give it a suffix "
        f"({', '.join('.' + suffix for suffix in formats())}) or name the format of all files by "
        "--format",
    )


def _format_of(head: bytes) -> str:
    for magic, format in _MAGIC.items():
        if head.startswith(magic):
            return format
    for name in installed(MAGIC):
        if load(MAGIC, name, f"data format {name[1:]}")(head):
            return name[1:]
    return ""
