"""The events of a job, numbered, as the page lists them."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch_edl.events import Event, FaultInjected, Loss, RecordsLacked, RingFormed, UpdatesLost
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

MOST_AT_ONCE = 300
"""Number of events in one answer."""
MAIN = "main"
"""Filter for all events but the routine ones, which would bury the others."""
ROUTINE = frozenset({"model_evaluated", "epoch_done", "checkpoint_written"})
"""Kinds of events that come again and again."""
_MOST_KEPT = 200_000
_MOST_RINGS = 100
_TEXT_CHARS = 2000
_TRACEBACK_CHARS = 20_000


class Told(NamedTuple):
    """An event with its number and time."""

    sequence: int
    time: float
    """Unix time in seconds."""
    event: Event
    text: str


def has_cost(event: Event) -> bool:
    """Return whether the page shows what an event cost."""
    return event.disrupts or isinstance(event, Loss | UpdatesLost | RecordsLacked)


class EventBook:
    """All events of a job, in their order; the oldest are dropped beyond 200,000."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self.incidents: list[Told] = []
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

    def add(self, messages: Iterable[pb.Event]) -> Iterator[Told]:
        """Add the events that are newer than all others, and yield them. Changes of processes are
        yielded alone: the page draws and does not list them."""
        for message in messages:
            if message.sequence <= self.last:
                continue
            self.last = message.sequence
            event = event_messages.from_message(message)
            told = Told(message.sequence, message.time, event, message.text)
            if message.level != "debug":
                self._list(message, told)
            yield told
        if len(self.all) > _MOST_KEPT:
            del self.all[: len(self.all) - _MOST_KEPT]

    def _list(self, message: pb.Event, told: Told) -> None:
        event = told.event
        row: dict[str, Any] = {
            "sequence": message.sequence,
            "time": message.time,
            "level": message.level,
            "text": message.text[:_TEXT_CHARS],
            "kind": message.kind,
        }
        if process := getattr(event, "process", None):
            row["process"] = process
        if event.traceback:
            row["traceback"] = event.traceback[:_TRACEBACK_CHARS]
        self.all.append(row)
        if not is_routine(row):
            self._main.append(row)
        self.kinds[message.kind] += 1
        self.levels[message.level] += 1
        if isinstance(event, RingFormed):
            self.rings.append((message.time, message.text))
        if has_cost(event) or isinstance(event, FaultInjected):
            self.incidents.append(told)

    def after(self, sequence: int) -> list[dict[str, Any]]:
        """Return the newest events above a number, at most :data:`MOST_AT_ONCE`; without the
        routine ones if the number is 0."""
        if not sequence:
            return list(self._main)
        return [event for event in self.all[-MOST_AT_ONCE:] if event["sequence"] > sequence]

    def matching(
        self, *, before: int, level: str = "", kind: str = "", text: str = ""
    ) -> list[dict[str, Any]]:
        """Return the newest events below a number that match, newest first.

        Args:
            level: ``info``, ``warning`` or ``error``; empty for all.
            kind: kind of an event; :data:`MAIN` for all but the routine ones, empty for all.
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
    """Return whether an event is an evaluation, an epoch or a checkpoint."""
    return event["kind"] in ROUTINE


def parse(lines: Iterable[bytes]) -> Iterator[pb.Event]:
    """Yield the events of some lines of ``events.jsonl``, without damaged ones."""
    for line in lines:
        with contextlib.suppress(ValueError):  # cut by a full disk
            yield event_messages.from_line(line)
