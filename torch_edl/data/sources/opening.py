"""Opens a source by its name; the formats of data files are told by suffix or first bytes."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_edl.data.sources.base import Source
from torch_edl.data.sources.paths import local
from torch_edl.data.sources.schemes import (
    check_database,
    import_database,
    is_database,
    is_object,
    open_database,
)
from torch_edl.data.sources.storage import objects
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError, UsageError

_SUFFIXES = {
    "recordio": ("recordio", "rio"),
    "tfrecord": ("tfrecord", "tfrecords"),
    "csv": ("csv", "tsv", "tab"),
    "parquet": ("parquet", "pq"),
    "arrow": ("arrow", "arrows", "feather", "ipc"),
    "jsonl": ("jsonl", "ndjson", "json"),
    "libsvm": ("libsvm", "svm", "svmlight"),
    "webdataset": ("tar", "tgz"),
    "avro": ("avro",),
}

_SOURCES = {
    "recordio": "recordio.RecordIOSource",
    "tfrecord": "tfrecord.TFRecordSource",
    "csv": "csv.CsvSource",
    "parquet": "parquet.ParquetSource",
    "arrow": "arrow.ArrowSource",
    "jsonl": "jsonl.JsonLinesSource",
    "libsvm": "libsvm.LibSvmSource",
    "webdataset": "webdataset.WebDatasetSource",
    "avro": "avro.AvroSource",
}

_MAGICS = {
    b"PAR1": "parquet",
    b"\x04\x03\x02\x01": "recordio",
    b"ARROW1": "arrow",
    b"FEA1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream
    b"Obj\x01": "avro",
}

_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257

FORMATS = tuple(_SUFFIXES)
"""Formats that :func:`open_source` reads."""


REQUESTS = 16
"""Objects that are looked at at once."""

T = TypeVar("T")


def open_source(path: str, *, format: str = "auto", skip_damaged: bool = False) -> Source:
    """Opens one data file, or what the URL of a database names.

    Args:
        path: the file or its URL; its absolute path, or the URL, becomes the name of the source. To
            the URL of a database, the source adds what all processes of a job must have in common.
        format: one of :data:`FORMATS`, or ``auto``: by suffix, else by the first bytes.
        skip_damaged: leave damaged records out and count them; all data is verified for that.

    Raises:
        UsageError: unknown format, or a URL that cannot be read here.
        DataError: the file cannot be read, or is damaged where the scan looks.
    """
    if is_database(path):
        return open_database(path, skip_damaged=skip_damaged)
    path = local(path)
    if not objects.is_url(path):
        path = os.path.abspath(path)
    return _opener(_kind(path, format))(path, skip_damaged=skip_damaged)


def of_each(paths: Sequence[str], look: Callable[[str], T]) -> list[T]:
    """What ``look`` finds in each of some sources, in their order; objects are looked at in several
    threads, since a store takes long to answer, and answers many at once.

    Args:
        look: raises what :func:`open_source` raises.
    """
    if not any(map(is_object, paths)):
        return [look(path) for path in paths]
    with ThreadPoolExecutor(REQUESTS, "sources") as pool:
        return list(pool.map(look, paths))


def import_reader(path: str, *, format: str = "auto") -> None:
    """Imports what :func:`open_source` needs for a data file; the arguments and errors are its own.
    The file is not opened, but for its first bytes where the suffix does not tell the format."""
    if is_database(path):
        import_database(path)
        return
    _opener(_kind(path, format))


def check_source(path: str, *, format: str = "auto") -> None:
    """Looks whether :func:`open_source` can begin: the format of a local file, the table and key of
    a database, the topic of a stream. Little is read, and nothing is counted.

    Raises:
        UsageError, DataError: as of :func:`open_source`.
    """
    if is_database(path):
        check_database(path)
    elif not objects.is_url(path):
        _kind(path, format)


def _kind(path: str, format: str) -> str:
    kind = _detect(path) if format == "auto" else format
    if kind not in _SUFFIXES:
        raise UsageError(f"data format {kind!r}: choose one of auto, {', '.join(FORMATS)}")
    return kind


def _opener(kind: str) -> Callable[..., Source]:
    # Imported when needed: pyarrow takes 0.2 s, which RecordIO jobs need not wait for.
    module, _, name = _SOURCES[kind].partition(".")
    opener: Callable[..., Source] = getattr(
        importlib.import_module(f"torch_edl.data.sources.files.{module}"), name
    )
    return opener


def _detect(path: str) -> str:
    # Not only the last suffix: train.tfrecord-00000-of-00010, part-0.snappy.parquet, day.csv.1.
    parts = re.split(r"[.\-]", os.path.basename(path).lower())[1:]
    for part in reversed(parts):
        for kind, suffixes in _SUFFIXES.items():
            if part in suffixes:
                return kind
    with DataFile(path) as file:
        head = file.read_at(0, min(_TAR_MAGIC_AT + len(_TAR_MAGIC), file.size))
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    if head[_TAR_MAGIC_AT:] == _TAR_MAGIC:
        return "webdataset"
    from torch_edl.data.sources.files.tfrecord import is_header

    if is_header(head[:12]):
        return "tfrecord"
    raise DataError(
        path,
        "neither its suffix nor its first bytes tell its format; give it a suffix "
        f"({', '.join('.' + suffixes[0] for suffixes in _SUFFIXES.values())}) or name the "
        "format of all files by --format",
    )
