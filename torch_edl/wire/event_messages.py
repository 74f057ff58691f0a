"""Events of a job as messages, and as lines of ``events.jsonl``."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from torch_edl.errors import UsageError
from torch_edl.events import Event, event_of
from torch_edl.typed_json import Count, Time, parse
from torch_edl.wire import control_pb2 as pb

NO_EVENTS = 1 << 53
"""Number above those of all events, for a request of a status without events: the largest that the
master accepts."""


class EventLine(TypedDict):
    """A line of ``events.jsonl``."""

    sequence: Count
    time: Time
    level: str
    kind: str
    text: str
    fields: dict[str, Any]


def to_message(event: Event, sequence: int, time: float) -> pb.Event:
    """Return the message of an event; ``time`` is in Unix seconds."""
    return pb.Event(
        sequence=sequence,
        time=time,
        level=event.level,
        text=event.text,
        kind=event.kind,
        fields=json.dumps(event.fields, allow_nan=False),
    )


def fields_of(message: pb.Event) -> dict[str, Any]:
    """Return the fields of a message.

    Raises:
        UsageError: they are no JSON object.
    """
    try:
        return parse(message.fields or "{}", dict[str, Any])
    except ValueError as error:
        raise UsageError(f"an event of the kind {message.kind[:60]!r}: fields: {error}") from None


def from_message(message: pb.Event) -> Event:
    """Return the event of a message whose fields are a JSON object."""
    fields = fields_of(message)
    return event_of(message.kind, fields, level=message.level, text=message.text)


def to_line(message: pb.Event) -> str:
    """Return the line of a message, without a line end."""
    line: EventLine = {
        "sequence": message.sequence,
        "time": message.time,
        "level": message.level,
        "kind": message.kind,
        "text": message.text,
        "fields": fields_of(message),
    }
    return json.dumps(line)


def from_line(line: str | bytes) -> pb.Event:
    """Return the message of a line.

    Raises:
        ValueError: the line was cut by a full disk, or is no event.
    """
    read = parse(line, EventLine)
    return pb.Event(
        sequence=read["sequence"],
        time=read["time"],
        level=read["level"],
        text=read["text"],
        kind=read["kind"],
        fields=json.dumps(read["fields"]),
    )
