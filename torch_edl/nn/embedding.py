"""An embedding over a hash table: any int64 id, and rows that are created on first use."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn import table_state
from torch_edl.nn.initializers import InitializerLike, resolve
from torch_edl.nn.local_rows import LocalRows
from torch_edl.nn.lookup import RowStore
from torch_edl.wire import pserver_pb2 as pb

_unnamed = itertools.count()


class Table(nn.Module):
    """The base of :class:`Embedding` and :class:`EmbeddingBag`: a table and its store of rows.

    ``weight`` is an empty parameter (0, dim) that stands for the table in the groups of the
    optimizer and in the autograd graph. The rows are in the store.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        name: str | None = None,
        initializer: InitializerLike = "uniform",
        min_count: int = 0,
        max_age: int | None = None,
    ) -> None:
        super().__init__()
        if num_embeddings is not None and num_embeddings < 1:
            raise UsageError(
                f"num_embeddings {num_embeddings}: must be 1 or more, or None for no bound"
            )
        if embedding_dim < 1:
            raise UsageError(f"embedding_dim {embedding_dim}: must be 1 or more")
        if min_count < 0 or (max_age is not None and max_age < 1):
            raise UsageError(f"min_count {min_count}, max_age {max_age}: must be positive")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.initializer = resolve(initializer, num_embeddings, embedding_dim)
        self.min_count = min_count
        self.max_age = max_age
        self.named = name is not None
        self.table = name or f"embedding-{next(_unnamed)}"
        self.modules_of_table: list[str] = []
        """Paths of all modules of this table in the model; set by ``bind_tables``."""
        self.weight = nn.Parameter(torch.empty(0, embedding_dim))
        self.store: RowStore = LocalRows(self)

    @property
    def local_rows(self) -> LocalRows | None:
        """The rows, if they are in this process; None: they are on parameter servers."""
        return self.store if isinstance(self.store, LocalRows) else None

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows (*ids.shape, embedding_dim); rows of ``padding_idx`` are zero and get no gradient.

        Raises:
            UsageError: the ids are not integers.
        """
        if ids.dtype != torch.int64:
            if ids.dtype != torch.int32:
                raise UsageError(
                    f"embedding {self.table}: ids are {ids.dtype}; "
                    "they must be int64: convert them with ids.long()"
                )
            ids = ids.long()
        out = self.store.lookup(self, ids).to(ids.device)
        if self.padding_idx is not None:
            out = out * (ids != self.padding_idx).unsqueeze(-1)
        return out

    def info(self, group: int) -> pb.EmbeddingTableInfo:
        """The description of the table; ``group`` is its parameter group."""
        return pb.EmbeddingTableInfo(
            name=self.table,
            dim=self.embedding_dim,
            initializer=pb.Initializer(
                kind=self.initializer.kind,
                args=dict(self.initializer.args),
                measured=self.initializer.measured,
            ),
            num_embeddings=self.num_embeddings or 0,
            group=group,
            min_count=self.min_count,
            max_age=self.max_age or 0,
            modules=self.modules_of_table,
        )

    def extra_repr(self) -> str:
        """Sizes first, as in torch."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self.table!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """See :mod:`torch_edl.nn.table_state`; torch calls this for ``state_dict()``."""
        rows = self.local_rows
        if rows is None:
            raise UsageError(
                f"state_dict(): the rows of table {self.table!r} are on parameter servers; "
                "job.state_dict() gathers the whole model, job.save(path) writes it"
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}{table_state.WEIGHT}"]
        path = prefix.removesuffix(".")
        if self.num_embeddings is None:
            destination.update(table_state.of_rows([path], *rows.rows()))
        else:
            destination.update(table_state.of_weight([path], rows.weight()))

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """The inverse of :meth:`_save_to_state_dict`."""
        ours = {prefix + k for k in (table_state.WEIGHT, table_state.IDS, table_state.VECTORS)}
        rest = {key: value for key, value in state_dict.items() if key not in ours}
        super()._load_from_state_dict(
            {**rest, f"{prefix}{table_state.WEIGHT}": self.weight.data},
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        try:
            rows = table_state.rows_in(state_dict, prefix, self.num_embeddings, self.embedding_dim)
        except ValueError as error:
            error_msgs.append(str(error))
            return
        if rows is None:
            key = table_state.IDS if self.num_embeddings is None else table_state.WEIGHT
            missing_keys.append(prefix + key)
        elif (local := self.local_rows) is not None:
            local.replace(*rows)
            local.loaded = True
        else:
            error_msgs.append(
                f"the rows of table {self.table!r} are on parameter servers; load the rows of a "
                "saved model with torch-edl run --load DIR"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy has rows of its own, and so has a module that is sent to another process."""
        local = self.local_rows
        return {**self.__dict__, "store": None if local is None else local.rows()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("store")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.store = local = LocalRows(self)
        if rows is not None:
            local.replace(*rows)


class Embedding(Table):
    """Like :class:`torch.nn.Embedding`, over a table that grows id by id.

    Args:
        num_embeddings: ids are in ``[0, num_embeddings)``; None: any int64 is an id.
        embedding_dim: size of a row.
        padding_idx: this id's row is zero and is not trained.
        name: name of the table; by default the module's path in the model. Modules of one name
            share one table.
        initializer: how a new row starts: ``"uniform"``, ``"normal"``, ``"zeros"``,
            ``"constant"``, ``"xavier_uniform"``, ``"xavier_normal"``, or with arguments
            ``("normal", {"std": 0.01})``.
        min_count: a row is trained from this number of occurrences of its id on.
        max_age: a row is removed after this number of updates without use.

    Example:
        >>> embedding = torch_edl.nn.Embedding(None, 16)
        >>> embedding(torch.tensor([[7, -3], [2**60, 7]])).shape
        torch.Size([2, 2, 16])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows (*input.shape, embedding_dim) of int64 ids."""
        return self.rows(input)
