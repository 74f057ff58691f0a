"""Requests to an object store: retries of temporary errors, and messages for other errors."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

from torch_edl.data.sources.base import CHANGED
from torch_edl.errors import DataError

log = logging.getLogger(__name__)

PAUSES_S = (0.2, 1.0, 5.0)
"""Seconds between the attempts at a request. In each attempt, the packages of fsspec retry too."""
_PATIENCE_S = 30.0
"""Seconds after the first attempt during which a new attempt may begin. A single attempt of s3fs
may take this long if the server closes all connections without an answer."""

# Parts of the names of connection errors in botocore, aiohttp and requests.
_BROKEN = re.compile("Connect|Timeout|Incomplete|Payload|ResponseStream|HTTPClient|Chunked")

# HTTP status codes of temporary errors, besides those from 500 on, and of denied access.
_BUSY = (408, 425, 429)
_DENIED = (401, 403)

# Errors that another attempt would repeat.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")

_CHECK = "; check the URL, and endpoint, region and credentials in the environment"


def tried(url: str, request: Callable[[], T]) -> T:
    """Call ``request`` until it succeeds, and return its value.

    Raises:
        DataError: the last attempt failed, or the error is not temporary.
    """
    began = time.monotonic()
    for pause_s in (*PAUSES_S, None):
        try:
            return request()
        except DataError:
            raise
        except Exception as error:  # each package has its own exceptions
            if is_denied(error):
                _forget_credentials(url)
            if not _may_pass(error):
                raise DataError(url, _reason(error)) from error
            tried_s = time.monotonic() - began
            if pause_s is None or tried_s > _PATIENCE_S:
                raise DataError(url, f"{_reason(error)}; tried for {tried_s:.0f} s") from error
            log.warning("%s: asked again in %.1f s: %s", url, pause_s, in_words(_cause(error)))
            time.sleep(pause_s)
    raise AssertionError


def _forget_credentials(url: str) -> None:
    """Make the next attempt on the task read the credentials again, which may have been renewed. A
    package of fsspec reads credentials once per process."""
    import fsspec

    fsspec.get_filesystem_class(url.partition("://")[0].lower()).clear_instance_cache()


def in_words(error: BaseException) -> str:
    """Return type and text of an error for messages, cut to 300 characters."""
    return f"{type(error).__name__}: {error}"[:300]


def is_denied(error: BaseException) -> bool:
    """Return True if the store denied access, with or without credentials."""
    if _status(_cause(error)) in _DENIED or isinstance(error, PermissionError):
        return True
    return isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs


def _may_pass(error: Exception) -> bool:
    cause = _cause(error)
    if _is_broken(cause):
        return True
    status = _status(cause)
    if status is not None:
        return status in _BUSY or status >= 500
    return isinstance(error, OSError) and not isinstance(error, _FINAL) and not is_denied(error)


def _reason(error: Exception) -> str:
    cause = _cause(error)
    status = _status(cause)
    if status == 416:  # the range is beyond the end
        return CHANGED
    if is_denied(error):
        return (
            f"cannot be read: access denied ({in_words(cause)}); credentials come from the "
            "environment of the process"
        )
    if status == 404 or (cause is error and isinstance(error, FileNotFoundError)):
        return "cannot be read: no such object; check the URL"
    fix = "" if status is None or status >= 500 else _CHECK
    return f"cannot be read: {in_words(cause)}{fix}"


def _cause(error: BaseException) -> BaseException:
    """Return the first error in a chain that is a connection error or has an HTTP status; otherwise
    ``error``. Packages replace such errors with others, such as FileNotFoundError."""
    each: BaseException | None = error
    while each is not None:
        if _is_broken(each) or _status(each) is not None:
            return each
        each = each.__cause__ or each.__context__
    return error


def _is_broken(error: BaseException) -> bool:
    return any(_BROKEN.search(kind.__name__) for kind in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)  # of botocore
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif hasattr(error, "status"):  # of aiohttp
        code = error.status
    else:
        code = getattr(error, "code", None)  # of gcsfs
    return code if isinstance(code, int) and 300 <= code < 600 else None
