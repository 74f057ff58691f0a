"""The events of a job, numbered, with what each tells."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from torch_edl import typed_json
from torch_edl.launch.jobs.logs import EventLine
from torch_edl.plugins.dashboard import marks

MOST_AT_ONCE = 300
"""Number of events in one answer."""
MAIN = "main"
"""Filter for all events but evaluations, epochs and checkpoints, which would bury the others."""
_MOST_KEPT = 200_000
_MOST_RINGS = 100
_TEXT_CHARS = 2000


class EventBook:
    """All events of a job, in their order; the oldest are dropped beyond 200,000."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.incidents: list[tuple[dict[str, Any], marks.Mark]] = []
        """Events with a cost, and faults that were injected, in order."""
        self.rings: deque[tuple[float, str]] = deque(maxlen=_MOST_RINGS)
        """Times and texts of the newest rings of workers, in order."""
        self.kinds: Counter[str] = Counter()
        """Number of events by kind."""
        self.levels: Counter[str] = Counter()
        """Number of events by level."""
        self._main: deque[dict[str, Any]] = deque(maxlen=MOST_AT_ONCE)
        self.last = 0
        """Number of the newest event."""

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events that are newer than all others; others are left out."""
        for event in events:
            if event["sequence"] <= self.last:
                continue
            self.last = event["sequence"]
            event["text"] = event["text"][:_TEXT_CHARS]
            mark = marks.read(event["level"], event["text"])
            event["kind"] = mark.kind
            if mark.process:
                event["process"] = mark.process
            self.all.append(event)
            if not is_routine(event):
                self._main.append(event)
            self.kinds[mark.kind] += 1
            self.levels[event["level"]] += 1
            if mark.kind == marks.RING:
                self.rings.append((event["time"], event["text"]))
            if mark.kind in marks.INCIDENTS or mark.kind == marks.FAULT:
                self.incidents.append((event, mark))
        if len(self.all) > _MOST_KEPT:
            del self.all[: len(self.all) - _MOST_KEPT]

    def after(self, sequence: int) -> list[dict[str, Any]]:
        """Return the newest events above a number, at most :data:`MOST_AT_ONCE`; without the
        routine ones if the number is 0."""
        if not sequence:
            return list(self._main)
        new = min(max(0, self.last - sequence), MOST_AT_ONCE)
        return [event for event in self.all[len(self.all) - new :] if event["sequence"] > sequence]

    def matching(
        self, *, before: int, level: str = "", kind: str = "", text: str = ""
    ) -> list[dict[str, Any]]:
        """Return the newest events below a number that match, newest first.

        Args:
            level: ``info``, ``warning`` or ``error``; empty for all.
            kind: kind of a :class:`~torch_edl.plugins.dashboard.marks.Mark`; :data:`MAIN` for all
                but the routine ones, empty for all.
            text: text that the event contains, in any case; empty for all.
        """
        found: list[dict[str, Any]] = []
        wanted = text.lower()
        for event in reversed(self.all):
            if (
                event["sequence"] < before
                and level in ("", event["level"])
                and (kind in ("", event["kind"]) or (kind == MAIN and not is_routine(event)))
                and wanted in event["text"].lower()
            ):
                found.append(event)
                if len(found) == MOST_AT_ONCE:
                    break
        return found


def is_routine(event: dict[str, Any]) -> bool:
    """Return whether an event is an evaluation, an epoch or a checkpoint without a problem."""
    return event["level"] == "info" and event["kind"] in marks.ROUTINE


def parse(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the events of some lines of ``events.jsonl``, without damaged ones."""
    found = []
    for line in lines:
        try:
            value = typed_json.parse(line, EventLine)
        except ValueError:
            continue  # truncated by a full disk
        event: dict[str, Any] = {n: value[n] for n in ("sequence", "time", "level", "text")}
        if value.get("traceback"):
            event["traceback"] = value["traceback"][:20_000]
        found.append(event)
    return found
