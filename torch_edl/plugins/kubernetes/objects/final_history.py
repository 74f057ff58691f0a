"""The history and the newest events of a job, thinned and compressed to fit into an annotation of
the master's Job: the folder of the master ends with its pod. This module is pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch_edl.plugins.kubernetes import names

# All annotations of an object together have 256 KiB, of which the status takes 16.
MAX_BYTES = 64 * 1024
# Every second curve point is removed down to this number.
_LEAST_POINTS = 100
# Older events are removed, until the events take at most this part of the size.
_EVENTS, _EVENTS_PART = 4000, 2
_EVENT = b'{"sequence": '
_MOST_READ_BYTES = 1 << 26


def to_text(history: bytes, events: bytes = b"", *, most: int = MAX_BYTES) -> str:
    """Encode the lines of a history and of ``events.jsonl``; empty if there are none.

    Args:
        most: largest size of the result in bytes.
    """
    newest = [line for line in events.split(b"\n") if line.startswith(_EVENT)]
    newest = newest[-_EVENTS:]
    while newest and len(_compressed(newest)) > most // _EVENTS_PART:
        newest = newest[(len(newest) + 1) // 2 :]
    lines = [line for line in history.split(b"\n") if line]
    points = [line for line in lines if b'"kind": "scalars"' in line]
    interval = 1
    while lines and len(_compressed([*lines, *newest])) > most:
        if len(points) > _LEAST_POINTS:
            interval *= 2
            points = points[(len(points) - 1) % 2 :: 2]
            kept = set(points)
            lines = [n for n in lines if n in kept or b'"kind": "scalars"' not in n]
        else:
            lines = lines[(len(lines) + 1) // 2 :]
    lines = [*_with_interval(lines, interval), *newest]
    return _compressed(lines) if lines else ""


def of(manifest: Mapping[str, Any]) -> bytes:
    """Return the lines in a Job object; empty if its master has not written any."""
    annotations = manifest["metadata"].get("annotations") or {}
    return from_text(annotations.get(names.HISTORY, ""))


def from_text(text: str) -> bytes:
    """Decode a history; empty if the text is damaged."""
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_READ_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return b""
    return unpacked


def parts(content: bytes) -> tuple[bytes, bytes]:
    """Return the lines of the history, and those of the events."""
    lines = content.splitlines(keepends=True)
    events = [line for line in lines if line.startswith(_EVENT)]
    return b"".join(line for line in lines if not line.startswith(_EVENT)), b"".join(events)


def _compressed(lines: Sequence[bytes]) -> str:
    return base64.b64encode(zlib.compress(b"\n".join(lines) + b"\n", 9)).decode()


def _with_interval(lines: Sequence[bytes], factor: int) -> list[bytes]:
    """Return the lines with the seconds between two points, ``factor`` times as many as before."""
    if factor == 1:
        return [*lines]
    found = []
    for line in lines:
        begin = json.loads(line) if b'"kind": "begin"' in line else None
        if begin is None:
            found.append(line)
        else:
            begin["interval_s"] *= factor
            found.append(json.dumps(begin).encode())
    return found
