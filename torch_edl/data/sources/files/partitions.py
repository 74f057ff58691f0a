"""Columns that the folders of a file name, as Hive, Spark and pyarrow write partitioned tables:
``clicks/day=2026-11-01/hour=7/part-0.parquet``."""

from __future__ import annotations

import re
from urllib.parse import unquote

_INTEGER = re.compile(r"-?\d{1,18}")

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions(path: str) -> dict[str, int | str | None]:
    """Return the values of the folders ``NAME=VALUE`` of a path or URL, by name. Digits are an
    integer, also with leading zeros, as pyarrow reads them."""
    found: dict[str, int | str | None] = {}
    for folder in path.split("/")[:-1]:
        name, separator, value = folder.partition("=")
        if name and separator:
            text = unquote(value)
            number = int(text) if _INTEGER.fullmatch(text) else text
            found[unquote(name)] = None if text == _NULL else number
    return found
