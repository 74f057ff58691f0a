"""Data that are no files: told by the scheme of an URL, opened by name. The modules of a source are
imported when it is used, and name the extra that is missing."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from typing import Any

from torch_edl.data.sources.base import Source
from torch_edl.data.sources.storage.objects import extras_of_url, is_url
from torch_edl.errors import UsageError

_SQL = ("postgresql", "sqlite", "duckdb", "mysql", "mariadb", "mssql", "oracle")
_KAFKA, _MAXCOMPUTE = "kafka", "maxcompute"
_OTHERS = {"kafka": _KAFKA, "odps": _MAXCOMPUTE}  # scheme to the names of modules, and of the extra
_AVRO = ".avro"
_PACKAGES = {"sql": "databases", _MAXCOMPUTE: "databases", _KAFKA: "streams"}


def is_database(path: str) -> bool:
    """Whether data of this name are no files: an URL of a scheme that is known, or that SQLAlchemy
    knows by a package that is installed."""
    scheme, separator, rest = path.partition("://")
    scheme = scheme.partition("+")[0]
    known = scheme in (*_SQL, *_OTHERS)
    # The packages are only asked where it may matter: they say behind # what is read.
    return bool(separator) and (known or ("#" in rest and scheme in _dialects()))


@functools.cache
def _dialects() -> frozenset[str]:
    found = importlib.metadata.entry_points(group="sqlalchemy.dialects")
    return frozenset(name.partition(".")[0] for name in found.names)


def is_stream(path: str) -> bool:
    """Whether data of this name may be read without end."""
    return _kind(path) == _KAFKA


def is_object(path: str) -> bool:
    """Whether data of this name are a file, or files, behind a URL."""
    return is_url(path) and not is_database(path)


def extras_of(path: str) -> set[str]:
    """The extras of torch-edl that install what reads data of this name."""
    if is_database(path):
        return {_kind(path)}
    found = {"avro"} if path.lower().endswith(_AVRO) else set()
    return found | extras_of_url(path)


def checked_name(url: str) -> str:
    """The URL as all processes of a job write it; nothing is opened.

    Raises:
        UsageError: a part is missing or wrong, there is a password in it, or an extra is missing.
    """
    return str(_module(url, "_name").parse(url))


def parts_of(url: str) -> list[str]:
    """The names of the sources of an URL: the partitions of a topic, the URL itself elsewhere.

    Raises:
        UsageError: the URL is wrong, or an extra is missing.
        DataError: nobody answers, or there is no such topic.
    """
    return list(_module(url).partitions_of(url)) if is_stream(url) else [url]


def open_database(url: str, *, skip_damaged: bool = False) -> Source:
    """What an URL names, with all in its name that the processes of a job must have in common.

    Args:
        skip_damaged: leave out what a stream has lost.

    Raises:
        UsageError: the URL is wrong, or an extra is missing.
        DataError: it cannot be read.
    """
    module = _module(url)
    source: Source
    match _kind(url):
        case "kafka":
            source = module.KafkaSource(url, skip_damaged=skip_damaged)
        case "maxcompute":
            source = module.MaxComputeSource(url)
        case _:
            source = module.SqlSource(url)
    return source


def import_database(url: str) -> None:
    """Imports what :func:`open_database` needs."""
    _module(url)


def check_database(url: str) -> None:
    """Looks whether what an URL names is there and may be read; nothing is counted.

    Raises:
        UsageError: the URL is wrong, or an extra or a driver is missing.
        DataError: nobody answers, or there is no such table, column or topic.
    """
    _module(url).check(url)


def _kind(url: str) -> str:
    return _OTHERS.get(url.partition("://")[0], "sql")


def _module(url: str, part: str = "") -> Any:
    kind = _kind(url)
    try:
        package = f"torch_edl.data.sources.{_PACKAGES[kind]}"
        return importlib.import_module(f"{package}.{kind}{part}")
    except ImportError as error:
        scheme = url.partition(":")[0]
        raise UsageError(
            f"data of {scheme}://...: {error}; install what reads it: "
            f"pip install 'torch-edl[{kind}]'"
        ) from error
