"""Objects behind URLs (``s3://``, ``gs://``, ``hdfs://``, ``https://``), read in ranges by fsspec.

Credentials and endpoints come from the environment, as each package of fsspec documents it; none
is accepted in a URL, where it would reach logs and checkpoints.
"""

from __future__ import annotations

import datetime
import email.utils
import logging
import re
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from torch_edl.data.sources.base import Stamp
from torch_edl.errors import DataError, UsageError

log = logging.getLogger(__name__)

AHEAD_BYTES = 16 << 20
"""Read at once where the bytes that follow are read next."""

RETRY_PAUSES_S = (0.2, 1.0, 5.0)
"""Between the attempts at a request; the packages of fsspec retry by themselves before that."""

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

# Where the packages of fsspec put the time of the last change, and what tells contents apart.
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")
_TAGS = ("ETag", "etag", "generation", "md5Hash", "checksum", "Content-MD5", "uid")

# Exceptions of aiobotocore and aiohttp that are no OSError.
_PASSING = re.compile("Connect|Timeout|Incomplete|Payload")

T = TypeVar("T")


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
        raise UsageError(f"{url}: cannot connect: {_in_words(error)}") from error
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

    about = _tried(url, info)
    if about.get("type") == "directory":
        raise DataError(url, "is a folder; name the files in it, or a pattern such as folder/*")
    if about.get("size") is None:
        raise DataError(url, "the server does not say how long it is; download it, or use another")
    tag = next((str(about[key]) for key in _TAGS if about.get(key)), "")
    return Stamp(int(about["size"]), _mtime_ns(about), zlib.crc32(tag.encode()))


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
    """The bytes of an object. What was read with ``expect`` is known to be of that content when
    :meth:`close` has returned, and not before."""

    def __init__(self, url: str, expect: Stamp | None = None) -> None:
        """
        Raises:
            UsageError: see :func:`connect`.
            DataError: see :func:`stamp_of`.
        """
        self._url = url
        self._expect = expect
        self._system, self._path = connect(url)
        self.stamp = expect or stamp_of(url, self._system, self._path)
        self.size = self.stamp.size
        self._window = (0, b"")
        self._soon = (0, 0)

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
        got = _tried(
            self._url, lambda: bytes(self._system.cat_file(self._path, start=start, end=end))
        )
        if len(got) != end - start:
            why = (
                "the server gave all of it for a range; use one that knows ranges, or download it"
                if len(got) == self.size
                else "changed while the job was using it; start the job again"
            )
            raise DataError(self._url, f"{len(got)} bytes for {end - start}: {why}", start)
        return got

    def close(self) -> None:
        """
        Raises:
            DataError: the object is not the expected one any more.
        """
        if self._expect is None:
            return
        if stamp_of(self._url, self._system, self._path) != self._expect:
            raise DataError(self._url, "changed while the job was using it; start the job again")


def _tried(url: str, request: Callable[[], T]) -> T:
    """What the request returns, which is repeated where that may help."""
    for pause_s in (*RETRY_PAUSES_S, None):
        try:
            return request()
        except FileNotFoundError as error:
            raise DataError(url, "cannot be read: no such object; check the URL") from error
        except PermissionError as error:
            raise DataError(
                url,
                f"cannot be read: access denied ({_in_words(error)}); credentials come from the "
                "environment of the process",
            ) from error
        except Exception as error:  # each package has exceptions of its own
            if pause_s is None or not _may_pass(error):
                raise DataError(url, f"cannot be read: {_in_words(error)}") from error
            log.warning("%s: asked again in %.1f s: %s", url, pause_s, _in_words(error))
            time.sleep(pause_s)
    raise AssertionError


def _may_pass(error: Exception) -> bool:
    """Whether the next attempt may succeed; without credentials it will not."""
    return isinstance(error, OSError) or _PASSING.search(type(error).__name__) is not None


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


# ---- which objects a URL names ----


def matching(pattern: str) -> list[str]:
    """URLs of the objects that a URL names: itself, a folder, or a pattern; sorted.

    Raises:
        UsageError: see :func:`connect`.
        DataError: the store cannot be listed.
    """
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

    names = _tried(pattern, listed)
    return sorted({_url_of(name, system, pattern) for name in names if _base(name)})


def _url_of(name: str, system: Any, pattern: str) -> str:
    parts = urlsplit(pattern)
    # Where the path does not begin with what follows the scheme, that was a host.
    if parts.netloc and name.startswith("/") and not name.startswith(f"/{parts.netloc}/"):
        return f"{parts.scheme}://{parts.netloc}{name}"
    return str(system.unstrip_protocol(name))


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _is_hidden(name: str, folder: str) -> bool:
    """As in folders of this machine: caches and markers are no data."""
    return any(part.startswith((".", "_")) for part in name[len(folder) :].split("/"))
