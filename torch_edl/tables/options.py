"""What a model says of a table, whatever its framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch_edl.errors import UsageError
from torch_edl.tables.initializers import Initializer, InitializerLike, resolve
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb


@dataclass(frozen=True)
class TableOptions:
    """The options of a table; :class:`torch_edl.nn.Embedding` documents them.

    Raises:
        UsageError: one is out of range.
    """

    bound: int | None
    """Ids are in ``[0, bound)``; None: any int64 is an id."""
    dim: int
    initializer: InitializerLike = "uniform"
    min_count: int = 0
    max_age: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    storage_dtype: str | None = None
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
        if self.storage_dtype not in (None, *codec.FLOAT_DTYPES):
            names = ", ".join(codec.FLOAT_DTYPES)
            raise UsageError(f"storage_dtype {self.storage_dtype!r}: choose one of {names}")
        object.__setattr__(self, "begins", resolve(self.initializer, self.bound, self.dim))

    def with_defaults(self, max_rows: int, storage_dtype: str) -> TableOptions:
        """Those of the job, where the model says nothing.

        Args:
            max_rows: of a table that has neither a number of ids nor a bound; 0: none.
        """
        open_ended = self.bound is self.max_rows is self.max_bytes is None
        return replace(
            self,
            max_rows=max_rows or None if open_ended else self.max_rows,
            storage_dtype=self.storage_dtype or storage_dtype,
        )

    def check_range(self, table: str, low: int, high: int, *, argument: str) -> None:
        """Checks the smallest and the largest of some ids.

        Args:
            argument: what the model calls the number of ids.

        Raises:
            UsageError: one is out of range.
        """
        if self.bound is not None and (low < 0 or high >= self.bound):
            raise UsageError(
                f"embedding {table}: id {low if low < 0 else high} is outside [0, {self.bound}); "
                f"make {argument} larger, or None for no bound"
            )

    def info(self, name: str, group: int, modules: Sequence[str]) -> pb.EmbeddingTableInfo:
        """The description of the table for servers.

        Args:
            group: its parameter group.
            modules: the paths of all modules of this table in the model.
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
            storage_dtype=codec.FLOAT_DTYPES[self.storage_dtype or "fp32"],
            modules=modules,
        )
