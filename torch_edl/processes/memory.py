"""Which process the kernel ends when memory is short."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# From -1000, never, to 1000, before any process of another score; see proc(5).
_SCORE = Path("/proc/self/oom_score_adj")
_FIRST = "1000"


@contextlib.contextmanager
def expendable() -> Iterator[None]:
    """Within it, the kernel ends this process before others when memory is short.

    A process may raise its score, and lower it to what it was. Where there is no such file, or it
    is not writable, this does nothing.
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
