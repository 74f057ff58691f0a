"""Folders that ``save_to_disk`` of Hugging Face's library ``datasets`` wrote. The data files are
Arrow streams, and ``state.json`` lists them in order, so the library is not needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.errors import DataError, UsageError

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_BYTES = 64 << 20


def data_files(found: Sequence[str]) -> list[str]:
    """Return the data files among the files of a folder.

    Args:
        found: paths or URLs.

    Raises:
        UsageError: a folder holds several splits.
        DataError: the list of data files is damaged.
    """
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
