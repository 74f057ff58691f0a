"""A range of an object in one request, whose answer also says of which content the range is.

``cat_file`` of a package returns the bytes alone. S3 and HTTP name the content in every answer (its
ETag), so their ranges are asked for by the request that is below ``cat_file``, and nobody has to
ask afterwards. What has come before a connection broke is kept, and the rest is asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torch_edl.errors import DataError

# What tells contents apart, as the packages of fsspec call it.
_TAGS = ("ETag", "etag", "generation", "md5Hash", "checksum", "Content-MD5", "uid")

NO_RANGES = "the server gives all of it for a range; use one that knows ranges, or download it"

_PART_BYTES = 1 << 20


def tag_of(about: Mapping[str, Any]) -> str:
    """What a store calls the content of an object; empty: it does not say."""
    return next((str(about[key]) for key in _TAGS if about.get(key)), "")


class Range:
    """The bytes ``start .. end - 1`` of an object, as far as they have come.

    Attributes:
        next: the first byte that is missing.
        tags: of the content, from each answer.
    """

    def __init__(self, start: int, end: int) -> None:
        self.next = start
        self.end = end
        self.tags: set[str] = set()
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """The bytes that have come next."""
        self._parts.append(part)
        self.next += len(part)

    def content(self) -> bytes:
        """What has come."""
        return b"".join(self._parts)

    @property
    def header(self) -> str:
        """What is missing, as HTTP says it."""
        return f"bytes={self.next}-{self.end - 1}"


def receive(system: Any, path: str, wanted: Range) -> None:
    """Asks a file system of fsspec for what is missing of a range; raises what that raises.

    Raises:
        DataError: the server knows no ranges.
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
