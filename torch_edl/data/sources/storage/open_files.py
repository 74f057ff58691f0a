"""Local files that were read last, left open for the next read: to open a file, to map it and to
touch its pages for the first time takes as long as decoding a task of it."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from torch_edl.data.sources.base import Stamp
from torch_edl.data.sources.storage.data_file import DataFile

MAX_OPEN = 16
"""Files left open per process, while nobody reads them."""

_idle: OrderedDict[tuple[str, Stamp], DataFile] = OrderedDict()  # each operation is atomic


@contextlib.contextmanager
def opened(path: str, expect: Stamp) -> Iterator[DataFile]:
    """A file for one reader; raises as :func:`take` and :func:`give_back` do."""
    file = take(path, expect)
    try:
        yield file
    except BaseException:
        file.close()
        raise
    give_back(file)


def take(path: str, expect: Stamp) -> DataFile:
    """A file for one reader, who gives it back, or closes it.

    Raises:
        DataError: it is another one than the stamp says.
    """
    file = _idle.pop((path, expect), None)
    if file is not None and file.is_current():
        return file
    return DataFile(path, expect=expect)


def give_back(file: DataFile) -> None:
    """Leaves a local file open for the next reader.

    Raises:
        DataError: it is an object, and has changed.
    """
    if not file.is_mapped:
        file.close()
        return
    _idle[file.path, file.stamp] = file
    while len(_idle) > MAX_OPEN:
        with contextlib.suppress(KeyError):  # another thread has it
            _idle.popitem(last=False)[1].close()
