"""Opening of sources by path or URL; the suffix or the first bytes of a file tell its format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_edl.config.extensions import MAGIC, installed, load
from torch_edl.data.sources.base import is_url
from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.sources.kinds import (
    file_type,
    formats,
    is_object,
    suffix_of,
    url_type,
)
from torch_edl.data.sources.paths import local
from torch_edl.errors import DataError
from torch_edl.interfaces import Source

_MAGIC = {b"PAR1": "parquet", b"\x04\x03\x02\x01": "recordio"}
_HEAD_BYTES = 512
"""Number of bytes at the start of a file in which formats look for their magic numbers."""

REQUESTS = 16
"""Number of parallel requests to a store."""

T = TypeVar("T")


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
    """Return the values of ``look`` for some sources, in order. If there are objects, ``look`` is
    called in several threads, since a store answers slowly but handles parallel requests.

    Args:
        look: function of a path; may raise the errors of :func:`open_source`.
    """
    if not any(map(is_object, paths)):
        return [look(path) for path in paths]
    with ThreadPoolExecutor(REQUESTS, "sources") as pool:
        return list(pool.map(look, paths))


def import_reader(path: str, *, format: str = "auto") -> None:
    """Import the modules that :func:`open_source` needs for a data file.

    Arguments and errors are those of :func:`open_source`. The file is opened only if its suffix
    does not tell its format.
    """
    if url_type(path) is None:
        file_type(_format(path, format))


def check_source(path: str, *, format: str = "auto") -> None:
    """Check that a source can be opened: the format of a local file, the table and key of a
    database, the topic of a stream. Little is read, and records are not counted.

    Raises:
        UsageError, DataError: see :func:`open_source`.
    """
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
    """Return the suffix of the format of a file that begins with some bytes; empty: unknown."""
    for magic, format in _MAGIC.items():
        if head.startswith(magic):
            return format
    # Imported for the few files without a suffix.
    from torch_edl.data.sources.files import tfrecord

    if tfrecord.is_header(head[: tfrecord.HEADER_BYTES]):
        return "tfrecord"
    for name in installed(MAGIC):
        if load(MAGIC, name, f"data format {name[1:]}")(head):
            return name[1:]
    return ""
