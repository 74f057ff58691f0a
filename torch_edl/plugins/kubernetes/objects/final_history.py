"""The history of a job that is over, thinned and compressed to fit into an annotation of the
master's Job: the folder of the master ends with its pod. This module is pure.
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
# Every second curve point is removed down to this number, then every second line of a process.
_LEAST_POINTS = 100
_MOST_READ_BYTES = 1 << 26


def to_text(content: bytes, *, most: int = MAX_BYTES) -> str:
    """Encode the lines of a history; empty if there are none.

    Args:
        most: largest size of the result in bytes.
    """
    lines = [line for line in content.split(b"\n") if line]
    points = [line for line in lines if b'"kind": "scalars"' in line]
    interval = 1
    while lines and len(text := _compressed(lines)) > most:
        if len(points) > _LEAST_POINTS:
            interval *= 2
            points = points[(len(points) - 1) % 2 :: 2]
            kept = set(points)
            lines = [n for n in lines if n in kept or b'"kind": "scalars"' not in n]
        else:
            lines = lines[len(lines) // 2 :]
    if not lines:
        return ""
    return text if interval == 1 else _compressed(_with_interval(lines, interval))


def of(manifest: Mapping[str, Any]) -> bytes:
    """Return the history in a Job object; empty if its master has not written any."""
    annotations = manifest["metadata"].get("annotations") or {}
    return from_text(annotations.get(names.HISTORY, ""))


def from_text(text: str) -> bytes:
    """Decode a history; empty if the text is damaged."""
    try:
        unpacked = zlib.decompressobj().decompress(base64.b64decode(text), _MOST_READ_BYTES)
    except (binascii.Error, ValueError, zlib.error):
        return b""
    return unpacked


def _compressed(lines: Sequence[bytes]) -> str:
    return base64.b64encode(zlib.compress(b"\n".join(lines) + b"\n", 9)).decode()


def _with_interval(lines: Sequence[bytes], factor: int) -> list[bytes]:
    """Return the lines with the seconds between two points, ``factor`` times as many as before."""
    found = []
    for line in lines:
        begin = json.loads(line) if b'"kind": "begin"' in line else None
        if begin is None:
            found.append(line)
        else:
            begin["interval_s"] *= factor
            found.append(json.dumps(begin).encode())
    return found
