"""Watches: the changes of the store as a stream, and the ways in which a stream can break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.cluster.kinds import Kind, Object, Refused
from tests.cluster.selectors import Matches
from tests.cluster.store import Change, Store

# A real server closes a watch by itself after 30 to 60 minutes.
_LONGEST_S = 1800.0
_BOOKMARK_S = 60.0


@dataclass(frozen=True)
class Watched:
    """What one request watches.

    Args:
        kind: of the objects.
        namespace: empty for all.
        matches: the selectors.
        since: a revision.
        bookmarks: the client takes bookmarks.
        timeout_s: after which the server ends the stream.
    """

    kind: Kind
    namespace: str
    matches: Matches
    since: int
    bookmarks: bool
    timeout_s: float | None

    def event(self, change: Change) -> tuple[str, Object] | None:
        """What the client is told about a change."""
        if change.kind is not self.kind:
            return None
        before = change.before if change.before and self._has(change.before) else None
        if change.after and self._has(change.after):
            return ("MODIFIED" if before else "ADDED"), change.after
        if before is None:
            return None
        last = change.before if change.after is None else change.after
        assert last is not None
        return "DELETED", last

    def _has(self, thing: Object) -> bool:
        where = thing["metadata"].get("namespace", "")
        return self.namespace in ("", where) and self.matches(thing)


@dataclass
class Watches:
    """All open watches.

    Args:
        store: of the objects.
        refused: new watches are cut off before an answer.
    """

    store: Store
    refused: bool = False
    _open: list[tuple[web.Request, str]] = field(default_factory=list)

    def drop(self) -> None:
        """Cuts every connection of a watch, without an end of the stream."""
        for request, _ in list(self._open):
            cut(request)

    def by_namespace(self) -> dict[str, int]:
        """The number of open watches."""
        return Counter(namespace for _, namespace in self._open)

    async def serve(self, request: web.Request, watched: Watched) -> web.StreamResponse:
        """Answers a request to watch."""
        if self.refused:
            cut(request)
            raise ConnectionResetError
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        opened = request, watched.namespace
        self._open.append(opened)
        try:
            await self._stream(answer, watched)
        except Refused as refused:
            await _send(answer, "ERROR", refused.status())
        finally:
            self._open = [other for other in self._open if other is not opened]
        await answer.write_eof()
        return answer

    async def _stream(self, answer: web.StreamResponse, watched: Watched) -> None:
        revision = watched.since
        end = time.monotonic() + (watched.timeout_s or _LONGEST_S)
        bookmark = time.monotonic() + _BOOKMARK_S
        while (left := end - time.monotonic()) > 0:
            changed = self.store.change()
            for change in self.store.changes_since(revision):
                revision = change.revision
                if event := watched.event(change):
                    await _send(answer, *event)
            if watched.bookmarks and time.monotonic() >= bookmark:
                await self._bookmark(answer, watched.kind, revision)
                bookmark = time.monotonic() + _BOOKMARK_S
            until_bookmark = max(0.0, bookmark - time.monotonic()) if watched.bookmarks else left
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(left, until_bookmark))
        if watched.bookmarks:
            await self._bookmark(answer, watched.kind, revision)

    async def _bookmark(self, answer: web.StreamResponse, kind: Kind, revision: int) -> None:
        metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
        thing = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
        if kind.name == "Pod":
            thing |= {"spec": {"containers": None}, "status": {}}
        await _send(answer, "BOOKMARK", thing)


async def _send(answer: web.StreamResponse, word: str, thing: Any) -> None:
    await answer.write(json.dumps({"type": word, "object": thing}).encode() + b"\n")


def cut(request: web.Request) -> None:
    """Ends the connection of a request without a word."""
    if request.transport is not None:
        request.transport.abort()
