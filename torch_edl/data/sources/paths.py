"""Expansion of paths, globs and folders to data files."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from torch_edl.data.sources.base import is_url, local
from torch_edl.data.sources.data_file import DataFile, storage_of
from torch_edl.data.sources.opening import url_type
from torch_edl.errors import DataError, UsageError


def expand(paths: Sequence[str]) -> list[str]:
    """Return the data files for some files, globs (including ``**``), folders and URLs.

    Args:
        paths: paths and URLs of the user. Folders are searched recursively; names in them that
            begin with ``.`` or ``_`` (caches, markers such as ``_SUCCESS``) are skipped. URLs of
            databases are checked, but not opened.

    Returns:
        Absolute paths and URLs without duplicates: in the order of ``paths``, and sorted for each
        path.

    Raises:
        UsageError: ``paths`` is empty, one of them matches nothing, a file is not readable or
            has a name that is not UTF-8, or a dataset has several splits.
        DataError: a store cannot be listed, or the list of a dataset cannot be read.
    """
    if not paths:
        raise UsageError("no data: name files, globs or folders")
    found: dict[str, None] = {}
    for pattern in map(local, paths):
        if (kind := url_type(pattern)) is not None:
            found[kind.canonical(pattern)] = None
            continue
        if is_url(pattern):
            urls = data_files(storage_of(pattern).matching(pattern))
            if not urls:
                raise UsageError(f"{pattern}: no object matches; check the URL, and quote patterns")
            found |= dict.fromkeys(urls)
            continue
        matches = data_files(list(_matches(pattern)))
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


def parts(paths: Sequence[str]) -> list[str]:
    """Return the names of the sources of expanded paths. A topic has one source for each partition;
    a missing topic raises DataError."""
    found: list[str] = []
    for path in paths:
        kind = url_type(path)
        found += [path] if kind is None else kind.parts(path)
    return found


def _matches(pattern: str) -> Iterator[str]:
    # An existing path is not a pattern, even if it contains glob characters.
    if os.path.exists(pattern):
        found = [pattern]
    else:
        # As in folders, a wildcard skips markers; the pattern "_*" matches them.
        marked = os.path.basename(pattern).startswith("_")
        found = [
            path
            for path in sorted(glob.glob(pattern, recursive=True))
            if marked or not os.path.basename(path).startswith("_")
        ]
    for path in found:
        if not os.path.isdir(path):
            yield os.path.abspath(path)
        elif path == pattern or "**" not in pattern:  # "**" matches the files itself
            yield from _files_below(path)


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(os.path.abspath(folder)):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(files):
            if not name.startswith((".", "_")):
                yield os.path.join(parent, name)


def _why_nothing(pattern: str) -> str:
    if os.path.isdir(pattern):
        return "the folder holds no data files; put some there or name another"
    if glob.has_magic(pattern):
        return "no file matches; check the pattern, and quote it so that the shell leaves it alone"
    return f"no such file (looked in {os.getcwd()}); check the path"


_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_BYTES = 64 << 20


def data_files(found: Sequence[str]) -> list[str]:
    """Return the data files among the paths or URLs of a folder; raise UsageError if it is a
    dataset of several splits."""
    names = set(found)
    files = list(found)
    for path in found:
        folder, _, name = path.rpartition("/")
        if name == _SPLITS:
            raise UsageError(
                f"{folder}: a dataset with the splits {', '.join(_splits(path))}; name one, such "
                f"as {folder}/{_splits(path)[0]}"
            )
        if name == _STATE and f"{folder}/{_INFO}" in names:
            files = [f for f in files if f.rpartition("/")[0] != folder]
            files += [f"{folder}/{each}" for each in _listed(path)]
    return files


def _splits(path: str) -> list[str]:
    return [str(split) for split in _content(path, "splits")]


def _listed(path: str) -> list[str]:
    try:
        return [str(each["filename"]) for each in _content(path, "_data_files")]
    except (TypeError, KeyError) as error:
        raise DataError(path, "does not list the data files of a dataset") from error


def _content(path: str, key: str) -> list[Any]:
    with DataFile(path) as file:
        try:
            found = json.loads(file.read_at(0, min(file.size, _MAX_BYTES)))[key]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(path, f"no list {key!r} in it: {error}") from error
    if not isinstance(found, list) or not found:
        raise DataError(path, f"no list {key!r} in it")
    return found
