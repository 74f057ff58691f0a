"""What a user sees of the traceback of their own code."""

from __future__ import annotations

import traceback
from pathlib import Path

from torch_edl.errors import DataError, EdlError

_OURS = Path(__file__).resolve().parents[2]


def user_traceback(error: BaseException, path: str) -> str:
    """The traceback of what the user's code raised, from the first frame of their file on.

    Our own frames at its end are left out, since the message says what was wrong, and so are
    those of libraries below a sys.exit(). An error of ours that did not pass through the file has
    no traceback: an empty string; any other error that did not has all of it that follows our
    frames.
    """
    cause = error.__cause__ if isinstance(error, EdlError) and error.__cause__ else error
    shown = traceback.TracebackException.from_exception(cause)
    wanted = Path(path).resolve()
    frames = list(shown.stack)
    files = [Path(frame.filename).resolve() for frame in frames]
    if wanted in files:
        last = len(frames)
        exits = isinstance(cause, SystemExit)
        while files[last - 1] != wanted and (exits or _OURS in files[last - 1].parents):
            last -= 1
        shown.stack = traceback.StackSummary.from_list(frames[files.index(wanted) : last])
    elif isinstance(cause, EdlError) or isinstance(error, DataError):
        return ""
    elif files and _OURS not in files[-1].parents:
        first = next(n for n, file in enumerate(files) if _OURS not in file.parents)
        shown.stack = traceback.StackSummary.from_list(frames[first:])
    return "".join(shown.format())
