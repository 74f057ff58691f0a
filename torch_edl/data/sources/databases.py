"""Data that are no files: told by the scheme of an URL, opened by name. The modules of a source are
imported when it is used, and name the extra that is missing."""

from __future__ import annotations

import importlib
from typing import Any

from torch_edl.data.sources.base import Source
from torch_edl.data.sources.objects import is_url
from torch_edl.errors import UsageError

_SQL = ("postgresql", "sqlite", "duckdb", "mysql", "mariadb", "mssql", "oracle")


def is_database(path: str) -> bool:
    """Whether data of this name are no files: an URL of a known scheme, or one that says behind
    ``#`` what to read."""
    scheme, separator, rest = path.partition("://")
    return bool(separator) and ("#" in rest or scheme.partition("+")[0] in _SQL)


def is_object(path: str) -> bool:
    """Whether data of this name are a file, or files, behind a URL."""
    return is_url(path) and not is_database(path)


def checked_name(url: str) -> str:
    """The URL as all processes of a job write it; nothing is opened.

    Raises:
        UsageError: a part is missing or wrong, there is a password in it, or an extra is missing.
    """
    return str(_module("sql_name").parse(url))


def open_database(url: str) -> Source:
    """What an URL names, with all in its name that the processes of a job must have in common.

    Raises:
        UsageError: the URL is wrong, or an extra is missing.
        DataError: it cannot be read.
    """
    source: Source = _module("sql").SqlSource(url)
    return source


def import_database(url: str) -> None:
    """Imports what :func:`open_database` needs."""
    _module("sql")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"torch_edl.data.sources.{name}")
    except ImportError as error:
        raise UsageError(
            f"data of a database: {error}; install the drivers: pip install torch-edl[sql]"
        ) from error
