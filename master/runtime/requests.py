"""Which numbers of a request can be at all. Pure.

Python counts without end, the int64 of a message does not: a sum of extreme numbers that somebody
told would not fit the next status, and the job could not be looked at any more.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from torch_edl.errors import UsageError

_LARGEST = 1 << 53
"""Counts, positions, sizes and ids of tasks stay below: a float64 holds them exactly."""
_ANY = frozenset({"seed", "code", "mtime_ns"})
"""A user's number, an exit code (below 0 where a signal ended the process), and nanoseconds since
1970, of which there are more: nobody adds them up."""


def check(request: Any) -> None:
    """Raises UsageError, naming the field, unless every integer is from -1 to 2**53."""
    for field, value in request.ListFields():
        values = value if field.is_repeated else (value,)
        for each in values:
            if isinstance(each, Message):
                check(each)
            elif isinstance(each, int) and not -1 <= each <= _LARGEST and field.name not in _ANY:
                raise UsageError(
                    f"{request.DESCRIPTOR.name}: {field.name} is {each}; expected -1 to 2**53"
                )
