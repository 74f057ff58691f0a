"""Objects behind URLs (``s3://``, ``gs://``, ``hdfs://``, ``https://``), read in ranges by fsspec.

Credentials and endpoints come from the environment, as each package of fsspec documents it; none
is accepted in a URL, where it would reach logs and checkpoints.
"""

from __future__ import annotations

import datetime
import email.utils
import re
import zlib
from typing import Any
from urllib.parse import urlsplit

from torch_edl.data.sources.base import Stamp
from torch_edl.data.sources.storage.attempts import CHANGED, in_words, tried
from torch_edl.data.sources.storage.ranges import NO_RANGES, Range, receive, tag_of
from torch_edl.errors import DataError, UsageError

AHEAD_BYTES = 16 << 20
"""Read at once where the bytes that follow are read next."""

_URL = re.compile(r"([a-z][a-z0-9+.\-]*)://", re.IGNORECASE)

# Packages of fsspec by scheme, as our extras name them; any other scheme has a package as well.
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "http": "http",
    "https": "http",
}

# Where the packages of fsspec put the time of the last change.
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")


def is_url(path: str) -> bool:
    """Whether this is a URL rather than a path of this machine."""
    return _URL.match(path) is not None


def extras_of_url(path: str) -> set[str]:
    """The extras of torch-edl with packages of fsspec for a URL."""
    extra = _EXTRAS.get(path.partition("://")[0].lower()) if is_url(path) else None
    return {extra} if extra else set()


def connect(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path of the URL in it.

    Raises:
        UsageError: the URL holds a password, its scheme is unknown, or a package is missing.
    """
    # Imported when needed: most jobs have no URLs.
    import fsspec

    scheme = url.partition("://")[0].lower()
    if urlsplit(url).password is not None:
        raise UsageError(
            f"{without_password(url)}: holds a password, which would reach logs and checkpoints; "
            "give credentials in the environment"
        )
    if "::" in url:
        raise UsageError(f"{url}: URLs within URLs ('::') cannot be read by index; name one")
    if scheme not in fsspec.available_protocols():
        raise UsageError(
            f"{url}: no package reads {scheme}://; write a path, or a URL such as s3://, gs://, "
            "hdfs:// or https://; a database needs its package for SQLAlchemy"
        )
    try:
        system, path = fsspec.core.url_to_fs(scheme + url[len(scheme) :])
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        fix = f"pip install 'torch-edl[{extra}]'" if extra else str(error)
        raise UsageError(f"{url}: a package for {scheme}:// is missing: {fix}") from error
    except Exception as error:
        raise UsageError(f"{url}: cannot connect: {in_words(error)}") from error
    return system, path


def without_password(url: str) -> str:
    """The URL as messages may show it."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:...@", url)


def stamp_of(url: str, system: Any, path: str) -> Stamp:
    """Of the object as it is now.

    Raises:
        DataError: there is none, it cannot be reached, or its size is not known.
    """

    def info() -> dict[str, Any]:
        system.invalidate_cache(path)
        found: dict[str, Any] = system.info(path)
        return found

    about = tried(url, info)
    if about.get("type") == "directory":
        raise DataError(url, "is a folder; name the files in it, or a pattern such as folder/*")
    if about.get("size") is None:
        raise DataError(url, "the server does not say how long it is; download it, or use another")
    return Stamp(int(about["size"]), _mtime_ns(about), _checksum(tag_of(about)))


def _checksum(tag: str) -> int:
    return zlib.crc32(tag.encode())


def _mtime_ns(about: dict[str, Any]) -> int:
    """The time of the last change; 0: it is not known."""
    if "modificationTime" in about:  # WebHDFS: milliseconds
        return int(about["modificationTime"]) * 1_000_000
    value: Any = next((about[key] for key in _TIMES if about.get(key)), 0)
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime.datetime):
        since = value.replace(tzinfo=value.tzinfo or datetime.UTC) - _EPOCH
        return since // datetime.timedelta(microseconds=1) * 1000
    return int(float(value) * 1e9)


def _parsed(text: str) -> datetime.datetime:
    try:
        return email.utils.parsedate_to_datetime(text)
    except ValueError:
        return datetime.datetime.fromisoformat(text)


_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


class ObjectBytes:
    """The bytes of an object. What was read is known to be of the content that the stamp names when
    :meth:`close` has returned, and not before."""

    def __init__(self, url: str, expect: Stamp | None = None) -> None:
        """
        Raises:
            UsageError: see :func:`connect`.
            DataError: see :func:`stamp_of`.
        """
        self._url = url
        self._system, self._path = connect(url)
        self.stamp = expect or stamp_of(url, self._system, self._path)
        self.size = self.stamp.size
        self._window = (0, b"")
        self._soon = (0, 0)
        self._is_known = True  # that every byte read is of the stamp

    def will_read(self, start: int, end: int) -> None:
        """These bytes will be read in order, so requests may be large."""
        self._soon = (start, end)

    def read_at(self, offset: int, size: int) -> bytes:
        """``size`` bytes, all of them within the object.

        Raises:
            DataError: the store did not give them.
        """
        begin, window = self._window
        if not begin <= offset <= offset + size <= begin + len(window):
            first, end = self._soon
            ahead = min(AHEAD_BYTES, end - offset) if first <= offset < end else 0
            begin, window = offset, self._fetch(offset, offset + max(size, ahead))
            if ahead:
                self._window = begin, window
        return window[offset - begin : offset - begin + size]

    def view_at(self, offset: int, size: int) -> memoryview:
        """As :meth:`read_at`."""
        return memoryview(self.read_at(offset, size))

    def _fetch(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        wanted = Range(start, end)
        tried(self._url, lambda: receive(self._system, self._path, wanted))
        for tag in wanted.tags:
            if not tag or not self.stamp.inode:
                self._is_known = False
            elif _checksum(tag) != self.stamp.inode:
                raise DataError(self._url, CHANGED)
        got = wanted.content()
        if len(got) != end - start:
            why = NO_RANGES if len(got) == self.size else CHANGED
            raise DataError(self._url, f"{len(got)} bytes for {end - start}: {why}")
        return got

    def check(self) -> None:
        """Asks the store, where its answers did not say it.

        Raises:
            DataError: the object is not the one of the stamp any more.
        """
        if self._is_known:
            return
        self._is_known = True
        if stamp_of(self._url, self._system, self._path) != self.stamp:
            raise DataError(self._url, CHANGED)

    def close(self) -> None:
        """As :meth:`check`."""
        self.check()
