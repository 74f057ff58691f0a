"""Requests for a range of an object, whose answers also identify the content of the object.

``cat_file`` of an fsspec package returns only bytes. S3 and HTTP identify the content in every
answer (ETag), so this module sends their requests itself, which saves a second request for the
stamp. After a broken connection, the received bytes are kept and the rest is requested.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torch_edl.errors import DataError

# Keys of the tag of a content in the packages of fsspec.
_TAGS = ("ETag", "etag", "generation", "md5Hash", "checksum", "Content-MD5", "uid")

NO_RANGES = "the server gives all of it for a range; use one that knows ranges, or download it"

_PART_BYTES = 1 << 20


def tag_of(about: Mapping[str, Any]) -> str:
    """Return the tag of an object's content in its store; empty: unknown."""
    return next((str(about[key]) for key in _TAGS if about.get(key)), "")


class Range:
    """The bytes ``start .. end - 1`` of an object that were received so far.

    Attributes:
        next: offset of the first missing byte.
        end: offset after the last byte.
        tags: tags of the content in all answers; an empty tag is unknown.
    """

    def __init__(self, start: int, end: int) -> None:
        self.next = start
        self.end = end
        self.tags: set[str] = set()
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Append received bytes."""
        self._parts.append(part)
        self.next += len(part)

    def content(self) -> bytes:
        """Return all received bytes."""
        return b"".join(self._parts)

    @property
    def header(self) -> str:
        """Value of the HTTP header ``Range`` for the missing bytes."""
        return f"bytes={self.next}-{self.end - 1}"


def receive(system: Any, path: str, wanted: Range) -> None:
    """Request the missing bytes of a range from an fsspec file system. Errors of the file system
    are not converted.

    Raises:
        DataError: the server does not support ranges.
    """
    names = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    ask = next((_BY_PROTOCOL[name] for name in names if name in _BY_PROTOCOL), None)
    if ask is not None:
        import fsspec.asyn

        fsspec.asyn.sync(system.loop, ask, system, path, wanted)
        return
    wanted.tags.add("")
    wanted.add(bytes(system.cat_file(path, start=wanted.next, end=wanted.end)))


async def _of_s3(system: Any, path: str, wanted: Range) -> None:
    bucket, key, version = system.split_path(path)
    named = {"VersionId": version} if version else {}
    answer = await system._call_s3(
        "get_object", Bucket=bucket, Key=key, Range=wanted.header, **named
    )
    wanted.tags.add(tag_of(answer))
    body = answer["Body"]
    async with body:
        while part := await body.read(_PART_BYTES):
            wanted.add(part)


async def _of_http(system: Any, path: str, wanted: Range) -> None:
    session = await system.set_session()
    headers = {"Range": wanted.header, "Accept-Encoding": "identity"}
    words = {**system.kwargs, "headers": {**system.kwargs.get("headers", {}), **headers}}
    async with session.get(system.encode_url(path), **words) as answer:
        answer.raise_for_status()
        if answer.status != 206 and (wanted.next or answer.content_length != wanted.end):
            raise DataError(path, NO_RANGES)
        wanted.tags.add(tag_of(answer.headers))
        async for part in answer.content.iter_any():
            wanted.add(part)


_BY_PROTOCOL: dict[str, Callable[[Any, str, Range], Awaitable[None]]] = {
    "s3": _of_s3,
    "http": _of_http,
}
