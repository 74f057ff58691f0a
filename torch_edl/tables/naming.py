"""The names of the tables of a model, whatever its framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from torch_edl.errors import UsageError
from torch_edl.tables.options import TableOptions


class TablePart(Protocol):
    """A part of a model that looks rows of a table up."""

    options: TableOptions
    is_named: bool
    """The user named the table."""
    table: str
    paths: list[str]
    """Of all parts of this table in the model."""


T = TypeVar("T", bound=TablePart)


def bind_tables(parts: Iterable[tuple[str, T]]) -> list[T]:
    """Names the tables by the paths of their parts in the model, unless the user named them.

    Args:
        parts: all of a model by their paths; a part that the model has twice comes with both.

    Returns:
        The parts, each once.

    Raises:
        UsageError: two parts of one table differ in size.
    """
    bound: dict[int, T] = {}
    first: dict[str, T] = {}
    paths: dict[str, list[str]] = {}
    for path, part in parts:
        if id(part) not in bound and not part.is_named:
            part.table = path or "embedding"
        bound[id(part)] = part
        paths.setdefault(part.table, []).append(path)
        dim, other = first.setdefault(part.table, part).options.dim, part.options.dim
        if dim != other:
            raise UsageError(
                f"two embeddings share the table {part.table!r} with dims {dim} and {other}: name "
                "one differently"
            )
    for part in bound.values():
        part.paths = paths[part.table]
    return list(bound.values())
