"""Sources: one file per format of data, all read by record index; found by path, suffix or magic.
No torch, no tasks, no shuffling here: a source only knows which bytes are record i."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence

from torch_edl.data.sources.base import IndexedSource, Metadata, Records, Source, concat, cut, take
from torch_edl.errors import DataError, UsageError

__all__ = [
    "FORMATS",
    "IndexedSource",
    "Metadata",
    "Records",
    "Source",
    "concat",
    "cut",
    "expand",
    "import_reader",
    "open_source",
    "take",
]

_SUFFIXES = {
    "recordio": ("recordio", "rio"),
    "tfrecord": ("tfrecord", "tfrecords"),
    "csv": ("csv", "tsv", "tab"),
    "parquet": ("parquet", "pq"),
}

FORMATS = tuple(_SUFFIXES)
"""Formats that :func:`open_source` reads."""


def expand(paths: Sequence[str]) -> list[str]:
    """The data files that files, globs (``**`` too) and folders name.

    Args:
        paths: as the user wrote them. Folders are searched to the bottom; names that begin with
            ``.`` or ``_`` (caches, markers such as ``_SUCCESS``) are no data there.

    Returns:
        Absolute paths without repetition: in the order of ``paths``, sorted within each.

    Raises:
        UsageError: ``paths`` is empty, one of them matches nothing, or a file is not readable or
            has a name that is not UTF-8.
    """
    if not paths:
        raise UsageError("no data: name files, globs or folders")
    found: dict[str, None] = {}
    for pattern in paths:
        matches = list(_matches(os.path.expanduser(pattern)))
        if not matches:
            raise UsageError(f"{pattern}: {_why_nothing(pattern)}")
        for path in matches:
            try:
                path.encode()
            except UnicodeEncodeError:
                shown = os.fsencode(path).decode(errors="backslashreplace")
                raise UsageError(
                    f"{shown}: the name is not UTF-8, and names of data files travel as text; "
                    "rename the file or folder"
                ) from None
            try:
                open(path, "rb").close()
            except OSError as error:
                raise UsageError(
                    f"{path}: cannot be read ({error.strerror}); check the file's permissions"
                ) from error
            found[path] = None
    return list(found)


def _matches(pattern: str) -> Iterator[str]:
    # A name that exists is that file, even if it contains glob characters.
    if os.path.exists(pattern):
        found = [pattern]
    else:
        # As with folders, a wildcard leaves markers out; "_*" asks for them.
        marked = os.path.basename(pattern).startswith("_")
        found = [
            path
            for path in sorted(glob.glob(pattern, recursive=True))
            if marked or not os.path.basename(path).startswith("_")
        ]
    for path in found:
        if not os.path.isdir(path):
            yield os.path.abspath(path)
        elif path == pattern or "**" not in pattern:  # "**" lists what its folders hold by itself.
            yield from _files_below(path)


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(os.path.abspath(folder)):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(files):
            if not name.startswith((".", "_")):
                yield os.path.join(parent, name)


def _why_nothing(pattern: str) -> str:
    if os.path.isdir(os.path.expanduser(pattern)):
        return "the folder holds no data files; put some there or name another"
    if glob.has_magic(pattern):
        return "no file matches; check the pattern, and quote it so that the shell leaves it alone"
    return f"no such file (looked in {os.getcwd()}); check the path"


def open_source(path: str, *, format: str = "auto", skip_damaged: bool = False) -> Source:
    """Opens one data file.

    Args:
        path: the file; its absolute path becomes the name of the source.
        format: one of :data:`FORMATS`, or ``auto``: by suffix, else by the first bytes.
        skip_damaged: leave damaged records out and count them; all data is verified for that.

    Raises:
        UsageError: unknown format.
        DataError: the file cannot be read, or is damaged where the scan looks.
    """
    path = os.path.abspath(os.path.expanduser(path))
    return _opener(_kind(path, format))(path, skip_damaged=skip_damaged)


def import_reader(path: str, *, format: str = "auto") -> None:
    """Imports what :func:`open_source` needs for a data file; the arguments and errors are its own.
    The file is not opened, but for its first bytes where the suffix does not tell the format."""
    _opener(_kind(path, format))


def _kind(path: str, format: str) -> str:
    kind = _detect(path) if format == "auto" else format
    if kind not in _SUFFIXES:
        raise UsageError(f"data format {kind!r}: choose one of auto, {', '.join(FORMATS)}")
    return kind


def _opener(kind: str) -> Callable[..., Source]:
    # Imported when needed: pyarrow takes 0.2 s, which RecordIO jobs need not wait for.
    if kind == "recordio":
        from torch_edl.data.sources.recordio import RecordIOSource

        return RecordIOSource
    if kind == "tfrecord":
        from torch_edl.data.sources.tfrecord import TFRecordSource

        return TFRecordSource
    if kind == "csv":
        from torch_edl.data.sources.csv import CsvSource

        return CsvSource
    from torch_edl.data.sources.parquet import ParquetSource

    return ParquetSource


def _detect(path: str) -> str:
    # Not only the last suffix: train.tfrecord-00000-of-00010, part-0.snappy.parquet, day.csv.1.
    parts = re.split(r"[.\-]", os.path.basename(path).lower())[1:]
    for part in reversed(parts):
        for kind, suffixes in _SUFFIXES.items():
            if part in suffixes:
                return kind
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"\x04\x03\x02\x01"):
        return "recordio"
    from torch_edl.data.sources.tfrecord import is_header

    if is_header(head):
        return "tfrecord"
    raise DataError(
        path,
        "neither its suffix nor its first bytes tell its format; give it a suffix "
        f"({', '.join('.' + suffixes[0] for suffixes in _SUFFIXES.values())}) or name the format",
    )
