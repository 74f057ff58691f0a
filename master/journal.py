"""Appends the events of the job to a file of its folder, where they stay when the job is over."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class Journal:
    """The file of events, a JSON object in each line.

    Args:
        path: of the file; that of an earlier master of the same job is continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self.written = _last_sequence(path)
        """Number of the last event that was written."""

    def write(self, events: Sequence[pb.Event]) -> None:
        """Appends events, in the order of their numbers.

        A disk that refuses is told once in the log: no training depends on this file.
        """
        if not events:
            return
        lines = "".join(f"{json.dumps(_plain(event))}\n" for event in events)
        self.written = events[-1].sequence
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(lines)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s: events are not kept", self._path, error.strerror)
            self._failed = True


def _plain(event: pb.Event) -> dict[str, object]:
    found = {
        "sequence": event.sequence,
        "time": event.time,
        "level": event.level,
        "text": event.text,
    }
    return {**found, "traceback": event.traceback} if event.traceback else found


def _last_sequence(path: Path) -> int:
    try:
        last = path.read_text(encoding="utf-8").rstrip("\n").rpartition("\n")[2]
        return int(json.loads(last)["sequence"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or cut by a full disk
        return 0
