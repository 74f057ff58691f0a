"""Objects behind URLs (``s3://``, ``gs://``, ``hdfs://``, ``https://``), read in ranges by fsspec.

Credentials and endpoints come from the environment, as the packages of fsspec document. A URL with
a password is rejected, since URLs appear in logs and checkpoints.
"""

from __future__ import annotations

import datetime
import email.utils
import re
import zlib
from typing import Any
from urllib.parse import urlsplit

from torch_edl.config.extensions import STORAGES, extras_of
from torch_edl.data.sources.base import CHANGED
from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces.source import Stamp
from torch_edl.plugins.object_stores.attempts import in_words, tried

AHEAD_BYTES = 16 << 20
"""Size of a request if the following bytes will be read next."""

_NO_RANGES = "the server gives all of it for a range; use one that knows ranges, or download it"

# Keys of the tag of a content in the packages of fsspec.
_TAGS = ("ETag", "etag", "generation", "md5Hash", "checksum", "Content-MD5", "uid")

# Keys of the modification time in the packages of fsspec.
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")


def connect(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in the file system.

    Raises:
        UsageError: the URL has a password or an unknown scheme, a package is missing, or the
            connection failed.
    """
    # Imported here, since most jobs have no URLs.
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
        # A server that compresses a range sends other bytes than those that were asked for.
        headers = {"Accept-Encoding": "identity"}
        words = {"headers": headers} if scheme in ("http", "https") else {}
        system, path = fsspec.core.url_to_fs(scheme + url[len(scheme) :], **words)
    except ImportError as error:
        extra = ",".join(extras_of(STORAGES, scheme))
        fix = f"pip install 'torch-edl[{extra}]'" if extra else str(error)
        raise UsageError(f"{url}: a package for {scheme}:// is missing: {fix}") from error
    except Exception as error:
        raise UsageError(f"{url}: cannot connect: {in_words(error)}") from error
    return system, path


def without_password(url: str) -> str:
    """Return the URL with its password replaced, for messages."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:...@", url)


def stamp_of(url: str, system: Any, path: str) -> Stamp:
    """Return the current stamp of an object.

    Raises:
        DataError: the object does not exist, is a folder, cannot be read, or has an unknown size.
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
    tag = next((str(about[key]) for key in _TAGS if about.get(key)), "")
    return Stamp(int(about["size"]), _mtime_ns(about), zlib.crc32(tag.encode()))


def _mtime_ns(about: dict[str, Any]) -> int:
    """Return the modification time in ns since the epoch; 0: unknown."""
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
    """Implements :class:`~torch_edl.interfaces.source.StoredBytes`. Bytes that were read are known
    to match the stamp only after :meth:`close` has returned."""

    def __init__(self, url: str, expect: Stamp | None = None) -> None:
        self._url = url
        self._system, self._path = connect(url)
        self.stamp = expect or stamp_of(url, self._system, self._path)
        self.size = self.stamp.size
        self._window = (0, b"")
        self._soon = (0, 0)
        self._is_checked = True  # True if nothing was read since the last check

    def will_read(self, start: int, end: int) -> None:
        self._soon = (start, end)

    def read_at(self, offset: int, size: int) -> bytes:
        begin, window = self._window
        if not begin <= offset <= offset + size <= begin + len(window):
            first, end = self._soon
            ahead = min(AHEAD_BYTES, end - offset) if first <= offset < end else 0
            begin, window = offset, self._fetch(offset, offset + max(size, ahead))
            if ahead:
                self._window = begin, window
        return window[offset - begin : offset - begin + size]

    def view_at(self, offset: int, size: int) -> memoryview:
        return memoryview(self.read_at(offset, size))

    def _fetch(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        got: bytes = tried(
            self._url, lambda: self._system.cat_file(self._path, start=start, end=end)
        )
        if len(got) != end - start:
            why = _NO_RANGES if len(got) == self.size else CHANGED
            raise DataError(self._url, f"{len(got)} bytes for {end - start}: {why}")
        self._is_checked = False
        return bytes(got)

    def check(self) -> None:
        if self._is_checked:
            return
        self._is_checked = True
        if stamp_of(self._url, self._system, self._path) != self.stamp:
            raise DataError(self._url, CHANGED)

    def close(self) -> None:
        self.check()


open_object = ObjectBytes
"""Implements :meth:`torch_edl.interfaces.source.Storage.open_object`."""


def matching(pattern: str) -> list[str]:
    """Implements :meth:`torch_edl.interfaces.source.Storage.matching`."""
    system, path = connect(pattern)

    def listed() -> list[str]:
        system.invalidate_cache()
        if "*" not in path and "?" not in path and "[" not in path:
            if not system.isdir(path):
                return [path] if system.exists(path) else []
            return [name for name in system.find(path) if not _is_hidden(name, path)]
        marked = path.rpartition("/")[2].startswith("_")
        found = []
        for name, about in system.glob(path, detail=True).items():
            if not marked and _base(name).startswith(("_", ".")):
                continue
            if about["type"] != "directory":
                found.append(name)
            elif "**" not in path:
                found += [f for f in system.find(name) if not _is_hidden(f, name)]
        return found

    names = tried(pattern, listed)
    return sorted({_url_of(name, system, pattern) for name in names if _base(name)})


def _url_of(name: str, system: Any, pattern: str) -> str:
    parts = urlsplit(pattern)
    # The first part of a URL is a host unless the paths of the file system begin with it.
    if parts.netloc and name.startswith("/") and not name.startswith(f"/{parts.netloc}/"):
        return f"{parts.scheme}://{parts.netloc}{name}"
    return str(system.unstrip_protocol(name))


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _is_hidden(name: str, folder: str) -> bool:
    """Return True for caches and markers, which are not data, as in local folders."""
    return any(part.startswith((".", "_")) for part in name[len(folder) :].split("/"))
