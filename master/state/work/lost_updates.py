"""What a server lost of the records that are done, when its machine lost power. Pure."""

from __future__ import annotations

from torch_edl.data.stream_space import AnySpace, StreamSpace
from torch_edl.tables.watermarks import Watermarks


def in_both(space: AnySpace, progress: Watermarks, marks: Watermarks) -> tuple[Watermarks, int]:
    """Return the progress as far as a server has it, and the number of records that the server
    lacks.

    Args:
        progress: what is done.
        marks: the records that are in the model of the server. A stream has forgotten the tasks
            that are done as a whole, so these are not compared.
    """
    first = progress.retired_before
    if not isinstance(space, StreamSpace):
        first = min(first, marks.retired_before)
    end = max([progress.retired_before, *(task + 1 for task in progress.offsets)])
    offsets, lacks = {}, 0
    for task in range(first, end):
        done = min(progress.offset(task), space.task(task).records)
        offsets[task] = min(done, marks.offset(task))
        lacks += done - offsets[task]
    return Watermarks(first, offsets), lacks
