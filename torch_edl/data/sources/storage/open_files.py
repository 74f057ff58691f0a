"""A cache of open local files. Opening a file, mapping it and touching its pages for the first time
takes as long as decoding a task."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from torch_edl.data.sources.storage.data_file import DataFile
from torch_edl.interfaces.source import Stamp

MAX_OPEN = 16
"""Maximum number of open files without a reader, per process."""

_idle: OrderedDict[tuple[str, Stamp], DataFile] = OrderedDict()  # each operation is atomic


@contextlib.contextmanager
def opened(path: str, expect: Stamp) -> Iterator[DataFile]:
    """Return a context with an open file for one reader; see :func:`take` and :func:`give_back`."""
    file = take(path, expect)
    try:
        yield file
    except BaseException:
        file.close()
        raise
    give_back(file)


def take(path: str, expect: Stamp) -> DataFile:
    """Return an open file for one reader, which must call :func:`give_back` or close the file.

    Raises:
        DataError: the file cannot be opened, or has another stamp.
    """
    file = _idle.pop((path, expect), None)
    if file is not None and file.is_current():
        return file
    return DataFile(path, expect=expect)


def give_back(file: DataFile) -> None:
    """Return a file to the cache if it is local; close it otherwise.

    Raises:
        DataError: the file is an object in a store that has changed.
    """
    if not file.is_mapped:
        file.close()
        return
    _idle[file.path, file.stamp] = file
    while len(_idle) > MAX_OPEN:
        with contextlib.suppress(KeyError):  # another thread has taken the file
            _idle.popitem(last=False)[1].close()
