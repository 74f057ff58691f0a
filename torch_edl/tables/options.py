"""Options and names of the embedding tables of a model, for every framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from torch_edl.config.table_storage import folder_of
from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError
from torch_edl.tables.initializers import Initializer, InitializerLike, resolve
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb


@dataclass(frozen=True)
class TableOptions:
    """The options of a table; :class:`torch_edl.nn.Embedding` documents them.

    Raises:
        UsageError: an option is out of range.
    """

    bound: int | None
    """Upper bound of the ids, which are in ``[0, bound)``; None if ids are any int64."""
    dim: int
    initializer: InitializerLike = "uniform"
    min_count: int = 0
    max_age: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    storage_dtype: str | None = None
    storage: str | None = None
    begins: Initializer = field(init=False, repr=False)
    """The distribution of a new row."""

    def __post_init__(self) -> None:
        if self.dim < 1 or (self.bound is not None and self.bound < 1):
            raise UsageError(
                f"a table of {self.bound} ids with rows of {self.dim}: both must be 1 or more; "
                "None for any int64 as an id"
            )
        if self.min_count < 0:
            raise UsageError(f"min_count {self.min_count}: must be 0 or more")
        for limit in ("max_age", "max_rows", "max_bytes"):
            value = getattr(self, limit)
            if value is not None and value < 1:
                raise UsageError(f"{limit} {value}: must be 1 or more, or None for no limit")
        if self.storage_dtype not in (None, *codec.STORAGE_DTYPES):
            names = ", ".join(codec.STORAGE_DTYPES)
            raise UsageError(f"storage_dtype {self.storage_dtype!r}: choose one of {names}")
        if self.storage is not None:
            folder_of(self.storage, "storage")
        object.__setattr__(self, "begins", resolve(self.initializer, self.bound, self.dim))

    def with_defaults(self, train: TrainConfig) -> TableOptions:
        """Return a copy in which missing options have the defaults of the job. The row limit is for
        tables without any bound of their own."""
        open_ended = self.bound is self.max_rows is self.max_bytes is None
        return replace(
            self,
            max_rows=train.max_rows or None if open_ended else self.max_rows,
            storage_dtype=self.storage_dtype or train.storage_dtype,
            storage=self.storage or train.table_storage,
        )

    def check_range(self, table: str, low: int, high: int, *, argument: str) -> None:
        """Check that the smallest and the largest id are inside the bound.

        Args:
            argument: name of the model's argument for the number of ids, for the message.

        Raises:
            UsageError: an id is out of range.
        """
        if self.bound is not None and (low < 0 or high >= self.bound):
            raise UsageError(
                f"embedding {table}: id {low if low < 0 else high} is outside [0, {self.bound}); "
                f"make {argument} larger, or None for no bound"
            )

    def info(self, name: str, group: int, modules: Sequence[str]) -> pb.EmbeddingTableInfo:
        """Return the description of the table for servers.

        Args:
            group: parameter group of the table.
            modules: paths of all modules of the model that use the table.
        """
        begins = self.begins
        return pb.EmbeddingTableInfo(
            name=name,
            dim=self.dim,
            initializer=pb.Initializer(
                kind=begins.kind, args=dict(begins.args), measured=begins.measured
            ),
            num_embeddings=self.bound or 0,
            group=group,
            min_count=self.min_count,
            max_age=self.max_age or 0,
            max_rows=self.max_rows or 0,
            max_bytes=self.max_bytes or 0,
            storage_dtype=codec.STORAGE_DTYPES[self.storage_dtype or "fp32"],
            folder=folder_of(self.storage, "storage") if self.storage else "",
            modules=modules,
        )


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
