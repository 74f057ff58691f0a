"""Requests to a store, repeated where that may help; and what is wrong, where it does not."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TypeVar

from torch_edl.errors import DataError

log = logging.getLogger(__name__)

PAUSES_S = (0.2, 1.0, 5.0)
"""Between the attempts at a request; the packages of fsspec retry by themselves before that."""
_PATIENCE_S = 30.0
"""Seconds after the first attempt in which another begins. One that ends at once is repeated after
each pause; s3fs alone takes as long for one where every connection is closed without an answer."""

CHANGED = "changed while the job was using it; start the job again"

# In the names of what botocore, aiohttp and requests raise when a connection fails.
_BROKEN = re.compile("Connect|Timeout|Incomplete|Payload|ResponseStream|HTTPClient|Chunked")

# Of an answer of HTTP; all from 500 on may pass, too.
_BUSY = (408, 425, 429)
_DENIED = (401, 403)

# Another attempt at the same would end in the same way.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)

T = TypeVar("T")


def tried(url: str, request: Callable[[], T]) -> T:
    """What the request returns.

    Raises:
        DataError: every attempt failed, or no other can help.
    """
    began = time.monotonic()
    for pause_s in (*PAUSES_S, None):
        try:
            return request()
        except DataError:
            raise
        except Exception as error:  # each package has exceptions of its own
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
    """The next attempt at a task looks for credentials again: others may be in their file by now.
    A package reads them once and shares them among all of its objects."""
    import fsspec

    fsspec.get_filesystem_class(url.partition("://")[0].lower()).clear_instance_cache()


def in_words(error: BaseException) -> str:
    """Type and text of an error, as messages show it."""
    return f"{type(error).__name__}: {error}"[:300]


def is_denied(error: BaseException) -> bool:
    """Whether the store knows who asks, or does not, and refuses."""
    if _status(_cause(error)) in _DENIED or isinstance(error, PermissionError):
        return True
    return isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs


def _may_pass(error: Exception) -> bool:
    """Whether the next attempt at a request may succeed."""
    cause = _cause(error)
    if _is_broken(cause):
        return True
    status = _status(cause)
    if status is not None:
        return status in _BUSY or status >= 500
    return isinstance(error, OSError) and not isinstance(error, _FINAL) and not is_denied(error)


def _reason(error: Exception) -> str:
    """What is wrong, and what mends it."""
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


_CHECK = "; check the URL, and endpoint, region and credentials in the environment"


def _cause(error: BaseException) -> BaseException:
    """What in a chain of errors tells most: a broken connection, or an answer of HTTP. Packages
    raise other errors in their place, such as that nothing was found."""
    each: BaseException | None = error
    while each is not None:
        if _is_broken(each) or _status(each) is not None:
            return each
        each = each.__cause__ or each.__context__
    return error


def _is_broken(error: BaseException) -> bool:
    return any(_BROKEN.search(kind.__name__) for kind in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """Of the answer of HTTP that an error stands for; None: there was none."""
    response = getattr(error, "response", None)  # of botocore
    if isinstance(response, dict):
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif hasattr(error, "status"):  # of aiohttp
        code = error.status
    else:
        code = getattr(error, "code", None)  # of gcsfs
    return code if isinstance(code, int) and 300 <= code < 600 else None
