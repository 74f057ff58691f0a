"""Names of the embedding tables of a model, for every framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from torch_edl.errors import UsageError
from torch_edl.tables.options import TableOptions


class TablePart(Protocol):
    """A module of a model that looks up rows of a table: a module of torch or a layer of Keras,
    neither of which this package imports."""

    options: TableOptions
    is_named: bool
    """True if the user named the table."""
    table: str
    paths: list[str]
    """Paths of all modules of the model that use this table."""


T = TypeVar("T", bound=TablePart)


def bind_tables(parts: Iterable[tuple[str, T]]) -> list[T]:
    """Name each table after the path of its first module, unless the user named the table.

    Args:
        parts: all modules by path; a module with two paths is listed twice.

    Returns:
        The modules without duplicates.

    Raises:
        UsageError: two modules share a table and differ in dim.
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
