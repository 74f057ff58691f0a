"""Records that are done but that a server lost, because its machine lost power. Pure."""

from __future__ import annotations

from torch_edl.data.stream_space import AnySpace, StreamSpace
from torch_edl.tables.watermarks import Watermarks


def in_both(space: AnySpace, progress: Watermarks, marks: Watermarks) -> tuple[Watermarks, int]:
    """Return the progress without the records that a server lacks, and the number of these records.

    Args:
        progress: watermarks of what is done.
        marks: watermarks of the server's model. For a stream, tasks below
            ``progress.retired_before`` are not compared: their sizes are forgotten.
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
