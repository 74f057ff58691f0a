"""The file of a job's events, which remains in the job's folder after its end."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class EventFile:
    """Appends events to a file, one JSON object in each line; the file of an earlier master is
    continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self.written, self._is_cut = _end_of(path)
        """Number of the last event in the file; 0 if it is empty."""

    def write(self, events: Sequence[pb.Event]) -> None:
        """Append events, in the order of their numbers. An error is logged once and otherwise
        ignored: training does not depend on this file."""
        if not events:
            return
        lines = "".join(f"{json.dumps(_plain(event))}\n" for event in events)
        self.written = events[-1].sequence
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"\n{lines}" if self._is_cut else lines)
            self._failed = self._is_cut = False
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s: events are not kept", self._path, error.strerror)
            self._failed = True
            self._is_cut = _end_of(self._path)[1]


def _plain(event: pb.Event) -> dict[str, object]:
    found = {
        "sequence": event.sequence,
        "time": event.time,
        "level": event.level,
        "text": event.text,
    }
    return {**found, "traceback": event.traceback} if event.traceback else found


def _end_of(path: Path) -> tuple[int, bool]:
    """Return the number of the last complete event, and whether a partial line follows."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:  # none
        return 0, False
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # truncated by a full disk
            return int(json.loads(line)["sequence"]), bool(lines[-1])
    return 0, bool(lines[-1])
