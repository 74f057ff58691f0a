"""An embedding over a hash table: any int64 id, rows that exist once they are used."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn.initializers import InitializerLike, resolve
from torch_edl.nn.local_rows import LocalRows
from torch_edl.nn.lookup import RowStore
from torch_edl.wire import pserver_pb2 as pb

_unnamed = itertools.count()


class Table(nn.Module):
    """What :class:`Embedding` and :class:`EmbeddingBag` share: a table and its store of rows.

    ``weight`` is an empty parameter (0, dim): it stands for the table in the optimizer's groups
    and in the autograd graph; the rows are in the store.
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
        self.weight = nn.Parameter(torch.empty(0, embedding_dim))
        self.store: RowStore = LocalRows(self)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows (*ids.shape, embedding_dim); rows of ``padding_idx`` are zero and get no gradient.

        Raises:
            UsageError: ids that are not integers.
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
        """What a store must know of the table; ``group`` is its parameter group."""
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
        )

    def extra_repr(self) -> str:
        """As torch's: sizes first."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self.table!r}"

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Ids and vectors of the rows that exist in this process."""
        if not isinstance(self.store, LocalRows):
            return {}
        ids, vectors = self.store.rows()
        return {"ids": torch.from_numpy(ids), "vectors": torch.from_numpy(vectors)}

    def set_extra_state(self, state: Any) -> None:
        """The inverse of :meth:`get_extra_state`."""
        if state and isinstance(self.store, LocalRows):
            self.store.load(state["ids"].numpy(), state["vectors"].numpy())

    def __getstate__(self) -> dict[str, Any]:
        """A copy, and a module in another process, has rows of its own."""
        return {**self.__dict__, "store": self.get_extra_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("store")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.store = LocalRows(self)
        self.set_extra_state(rows)


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
        min_count: a row is trained once its id was seen so often.
        max_age: a row unused for so many updates is forgotten.

    Example:
        >>> embedding = torch_edl.nn.Embedding(None, 16)
        >>> embedding(torch.tensor([[7, -3], [2**60, 7]])).shape
        torch.Size([2, 2, 16])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows (*input.shape, embedding_dim) of int64 ids."""
        return self.rows(input)
