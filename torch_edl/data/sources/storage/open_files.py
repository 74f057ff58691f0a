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
    """A file for one reader.

    Raises:
        DataError: it is another one than the stamp says; of an object, so does the end of the
            block.
    """
    file = _idle.pop((path, expect), None)
    if file is None or not file.is_current():
        file = DataFile(path, expect=expect)
    with contextlib.ExitStack() as stack:
        stack.push(file)
        yield file
        if file.is_mapped:
            stack.pop_all()
            _idle[path, expect] = file
    while len(_idle) > MAX_OPEN:
        with contextlib.suppress(KeyError):  # another thread has it
            _idle.popitem(last=False)[1].close()
