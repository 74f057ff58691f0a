"""Opens a source by its name; the formats of data files are told by suffix or first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch_edl.data.sources.kinds import (
    file_type,
    formats,
    is_object,
    is_other,
    suffix_of,
    url_type,
)
from torch_edl.data.sources.paths import local
from torch_edl.data.sources.storage import objects
from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Source

_HEAD_BYTES = 512
"""First bytes of a file in which a format looks for its magic number."""

REQUESTS = 16
"""Objects that are looked at at once."""

T = TypeVar("T")


def open_source(path: str, *, format: str = "auto", skip_damaged: bool = False) -> Source:
    """Opens one data file, or what the URL of a database names.

    Args:
        path: the file or its URL; its absolute path, or the URL, becomes the name of the source. To
            the URL of a database, the source adds what all processes of a job must have in common.
        format: a suffix of a format, or ``auto``: by the suffix of the file, else by its first
            bytes.
        skip_damaged: leave damaged records out and count them; all data is verified for that.

    Raises:
        UsageError: unknown format, or a URL that cannot be read here.
        DataError: the file cannot be read, or is damaged where the scan looks.
    """
    if is_other(path):
        source: Source = url_type(path)(path, skip_damaged=skip_damaged)
        return source
    path = local(path)
    if not objects.is_url(path):
        path = os.path.abspath(path)
    return file_type(_format(path, format))(path, skip_damaged=skip_damaged)


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
    if is_other(path):
        url_type(path)
        return
    file_type(_format(path, format))


def check_source(path: str, *, format: str = "auto") -> None:
    """Looks whether :func:`open_source` can begin: the format of a local file, the table and key of
    a database, the topic of a stream. Little is read, and nothing is counted.

    Raises:
        UsageError, DataError: as of :func:`open_source`.
    """
    if is_other(path):
        url_type(path).check(path)
    elif not objects.is_url(path):
        found = _format(path, format)
        if found not in formats():
            raise UsageError(f"--format {found}: choose one of auto, {', '.join(formats())}")


def _format(path: str, format: str) -> str:
    return (suffix_of(path) or _by_first_bytes(path)) if format == "auto" else format


def _by_first_bytes(path: str) -> str:
    with DataFile(path) as file:
        head = bytes(file.read_at(0, min(_HEAD_BYTES, file.size)))
    for format in formats():
        try:
            begins = getattr(file_type(format), "begins", None)
        except UsageError:
            continue  # the library of this format is not installed
        if begins is not None and begins(head):
            return format
    raise DataError(
        path,
        "neither its suffix nor its first bytes tell its format; give it a suffix "
        f"({', '.join('.' + suffix for suffix in formats())}) or name the format of all files by "
        "--format",
    )
