"""Streamed answers of the API server: the lines of a log and the events of a watch."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch_edl.plugins.kubernetes.cluster.failures import NoAnswerError, read_error, unreachable

# An event of a watch has one object, and an object has 1.5 MB at most.
_LINE_BYTES = 4 << 20


@dataclass(frozen=True)
class WatchEvent:
    """One event of a watch."""

    type: str
    """``ADDED``, ``MODIFIED``, ``DELETED``, ``BOOKMARK`` or ``ERROR``."""
    object: dict[str, Any]


class EventStream:
    """The events of a watch.

    The ``Watch`` of the official client (37.0) does not replace this class: without conversion to
    its models, an ``ERROR`` event is a ``KeyError``
    (``test_a_version_that_is_forgotten_is_told_at_the_start_or_within``), and with it, a line that
    is no event is dropped (``test_a_line_that_is_no_event_breaks_the_watch``).

    Args:
        response: response of the server whose body was not read yet.
        what: request that the response answers; like host and namespace, for messages.
    """

    def __init__(self, response: Any, what: str, host: str, namespace: str) -> None:
        self._response = response
        self._what = what
        self._host = host
        self._namespace = namespace

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield the events as they arrive.

        Raises:
            ExpiredError: the server no longer has the version at which the watch begins.
            ClusterError: the connection broke, or was silent for too long.
        """
        with contextlib.closing(self._response):
            for line in lines_of(self._response, self._what, self._host):
                event = _event(line, self._what)
                if event.type == "ERROR":
                    raise read_error(
                        int(event.object.get("code") or 500),
                        json.dumps(event.object),
                        {},
                        what=self._what,
                        namespace=self._namespace,
                    )
                yield event

    def interrupt(self) -> None:
        """End the iteration, which runs in another thread."""
        connection = getattr(self._response, "connection", None)
        sock = getattr(connection, "sock", None)
        # A close would wait for the thread that reads.
        with contextlib.suppress(OSError):
            if sock is not None:
                sock.shutdown(socket.SHUT_RDWR)


def lines_of(response: Any, what: str, host: str) -> Iterator[bytes]:
    """Yield the lines of a response as they arrive."""
    rest = b""
    with in_one_line(what, host):
        for chunk in response.stream(amt=None, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LINE_BYTES:
                raise NoAnswerError(f"{what}: a line of more than {_LINE_BYTES:,} bytes")
            yield from filter(None, lines)
    if rest:
        yield rest


@contextlib.contextmanager
def in_one_line(what: str, host: str) -> Iterator[None]:
    """Raise NoAnswerError in place of exceptions of the client library."""
    from kubernetes.client.exceptions import OpenApiException
    from kubernetes.config import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (HTTPError, OSError, OpenApiException, ConfigException, ValueError) as error:
        raise unreachable(error, what=what, host=host) from error


def _event(line: bytes, what: str) -> WatchEvent:
    try:
        raw = json.loads(line)
        return WatchEvent(type=str(raw["type"]), object=dict(raw["object"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NoAnswerError(f"{what}: a line that is no event: {line[:80]!r}") from error
