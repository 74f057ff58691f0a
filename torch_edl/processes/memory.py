"""Order in which the kernel kills processes when memory runs out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# From -1000 (never killed) to 1000 (killed before all others); see proc(5).
_SCORE = Path("/proc/self/oom_score_adj")
_FIRST = "1000"


@contextlib.contextmanager
def expendable() -> Iterator[None]:
    """Make the kernel kill this process first if memory runs out inside the ``with`` block.

    Without privileges, a process may raise its score and lower it again to the old value. If the
    file is missing or not writable, this function does nothing.
    """
    try:
        before = _SCORE.read_text()
        _SCORE.write_text(_FIRST)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        _SCORE.write_text(before)
