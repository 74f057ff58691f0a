"""Tracebacks of user code, without the frames of this package."""

from __future__ import annotations

import traceback
from pathlib import Path

from torch_edl.errors import DataError, EdlError

_OURS = Path(__file__).resolve().parents[2]


def user_traceback(error: BaseException, path: str) -> str:
    """Return the traceback of an error, from the first frame of the user's file.

    Trailing frames of this package are left out, since the message explains the error. For
    ``sys.exit()`` trailing frames of libraries are left out too. If the file is not in the
    traceback, the result is empty for an error of this package. For any other error it begins at
    the first frame outside this package.

    Args:
        error: the error; an EdlError is replaced by its cause.
        path: path of the user's file.
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
