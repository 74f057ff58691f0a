"""Sources of databases without an entry point of their own, by the dialects of SQLAlchemy."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import Any


def source_of(url: str) -> Any:
    """Return the type of sources of a URL if SQLAlchemy has a dialect for it; otherwise None.

    The URL of a database has a fragment (``#``) that says what is read.
    """
    scheme, _, rest = url.partition("://")
    if "#" not in rest or scheme.partition("+")[0] not in _dialects():
        return None
    from torch_edl.plugins.sql.source import SqlSource

    return SqlSource


@functools.cache
def _dialects() -> frozenset[str]:
    return frozenset(
        name.partition(".")[0] for name in entry_points(group="sqlalchemy.dialects").names
    )
