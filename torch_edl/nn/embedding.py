"""Embeddings with rows in a hash table: ids may be any int64, and rows are created on first use."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn.rows import (
    IDS,
    VECTORS,
    WEIGHT,
    LocalRows,
    RowStore,
    drop_gradients,
    rows_in_state,
    state_of_rows,
    state_of_weight,
)
from torch_edl.tables.initializers import InitializerLike
from torch_edl.tables.options import TableOptions
from torch_edl.wire import pserver_pb2 as pb

_grad: Any = torch.Tensor.grad


class TableWeight(nn.Parameter):
    """The empty parameter (0, dim) that represents a table in the parameter groups of an optimizer.
    Only lookups may use it: other computations do not reach the rows, so a penalty would silently
    be 0.

    The class relies on internals of torch, as :mod:`torch_edl.pytorch.torch_internals` does, which
    imports this module. ``__torch_function__`` receives each operation on the parameter ("Extending
    torch" in torch's documentation; github.com/pytorch/pytorch/issues/65018). Pickle restores a
    plain ``Parameter`` (``torch._utils._rebuild_parameter``), whose class is set again by
    :meth:`Table.__setstate__`. Tests in ``tests/unit/nn/test_embedding.py``:
    ``test_a_penalty_on_the_weight_of_a_table_is_refused``, also for copies, and
    ``test_gradients_of_a_table_cannot_be_had_without_backward``.

    Raises (in ``backward`` and ``torch.autograd.grad``):
        UsageError: the parameter is used by another operation than a lookup, or its gradient is
            requested.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.autograd.grad:
            raise UsageError(
                "torch.autograd.grad(): the inputs have the weight of a table of torch_edl.nn, "
                "whose rows get their gradients by backward() alone; leave it out of the inputs, "
                "or call backward()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **kwargs or {})
            for each in made if isinstance(made, list | tuple) else [made]:
                if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                    each.register_hook(_refuse)  # type: ignore[no-untyped-call]
        return made

    @property
    def grad(self) -> torch.Tensor | None:
        """Empty gradient (0, dim); None if there is none. Setting it to None or to zero, as
        ``zero_grad`` does, discards the gradients of the rows."""
        own = _grad.__get__(self)
        if own is None:
            return None
        shown: torch.Tensor = own.as_subclass(_TableGradient)
        shown.weight = self  # type: ignore[attr-defined]
        return shown

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _grad.__set__(self, value)
        if value is None:
            drop_gradients(self)


class _TableGradient(torch.Tensor):
    """The gradient of a table's weight. Setting it to zero discards the gradients of the rows."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ in ("zero_", "_foreach_zero_"):
            for each in args[0] if isinstance(args[0], list | tuple) else args[:1]:
                if isinstance(each, cls):
                    drop_gradients(each.weight)  # type: ignore[attr-defined]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def _refuse(_: torch.Tensor) -> None:
    raise UsageError(
        "the loss depends on the weight of a table of torch_edl.nn (a large torch.nn.Embedding on "
        "parameter servers is one, too); the weight is empty, so that a penalty adds nothing: "
        "penalize the rows of the batch, embedding(ids).square().sum(), or give the optimizer a "
        "weight_decay"
    )


_MODES = ("sum", "mean", "sqrtn")

_unnamed = itertools.count()


class Table(nn.Module):
    """Base class of :class:`Embedding` and :class:`EmbeddingBag`: a table and its row store.

    ``weight`` is an empty parameter (0, dim) that represents the table in the optimizer's parameter
    groups and in the autograd graph. The rows are in the store.
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
        max_rows: int | None = None,
        max_bytes: int | None = None,
        storage_dtype: str | None = None,
        storage: str | None = None,
    ) -> None:
        super().__init__()
        self.options = TableOptions(
            num_embeddings, embedding_dim, initializer,
            min_count=min_count, max_age=max_age, max_rows=max_rows, max_bytes=max_bytes,
            storage_dtype=storage_dtype, storage=storage,
        )  # fmt: skip
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None and num_embeddings is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise UsageError(
                    f"padding_idx {padding_idx}: must be in [-{num_embeddings}, {num_embeddings})"
                )
            padding_idx %= num_embeddings  # negative: counted from the end, as in torch
        self.padding_idx = padding_idx
        self.is_named = name is not None
        self.table = name or f"embedding-{next(_unnamed)}"
        self.paths: list[str] = []
        """Paths of all modules of the model that use this table, set by
        :func:`~torch_edl.tables.options.bind_tables`."""
        self.weight: nn.Parameter = TableWeight(torch.empty(0, embedding_dim))
        self.store: RowStore = LocalRows(self)

    @property
    def local_rows(self) -> LocalRows | None:
        """Rows of the table in this process; None if they are on parameter servers."""
        return self.store if isinstance(self.store, LocalRows) else None

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows (*ids.shape, embedding_dim); ``padding_idx`` is zero without a gradient.

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
        """Return the description of the table; ``group`` is its parameter group."""
        return self.options.info(self.table, group, self.paths)

    def extra_repr(self) -> str:
        """Return the arguments for ``repr``, sizes first as in torch."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, table={self.table!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Write the rows for ``state_dict()``; see :mod:`torch_edl.nn.rows` for the layout."""
        rows = self._rows_here("state_dict()")
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[f"{prefix}{WEIGHT}"]
        path = prefix.removesuffix(".")
        if self.num_embeddings is None:
            destination.update(state_of_rows([path], *rows.rows()))
        else:
            destination.update(state_of_weight([path], rows.weight()))

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
        """Load the rows that :meth:`_save_to_state_dict` wrote."""
        ours = {prefix + k for k in (WEIGHT, IDS, VECTORS)}
        rest = {key: value for key, value in state_dict.items() if key not in ours}
        super()._load_from_state_dict(
            {**rest, f"{prefix}{WEIGHT}": self.weight.data},
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        try:
            rows = rows_in_state(state_dict, prefix, self.num_embeddings, self.embedding_dim)
        except ValueError as error:
            error_msgs.append(str(error))
            return
        if rows is None:
            key = IDS if self.num_embeddings is None else WEIGHT
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
        """Return the state for a copy or another process, with a copy of the rows.

        Raises:
            UsageError: the rows are on parameter servers.
        """
        rows = self._rows_here("torch.save(model), copy.deepcopy(model)")
        return {**self.__dict__, "store": rows.rows()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state.pop("store")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.weight.__class__ = TableWeight  # pickle restores a plain Parameter
        self.store = local = LocalRows(self)
        local.replace(*rows)

    def _rows_here(self, what: str) -> LocalRows:
        """Return the rows in this process.

        Args:
            what: operation that needs the rows, for the message.

        Raises:
            UsageError: the rows are on parameter servers.
        """
        if self.local_rows is None:
            raise UsageError(
                f"{what}: the rows of table {self.table!r} are on parameter servers; "
                "job.state_dict() gathers the whole model, job.save(path) writes it"
            )
        return self.local_rows


class Embedding(Table):
    """Embedding like :class:`torch.nn.Embedding`, with a table that grows as new ids appear.

    Args:
        num_embeddings: upper bound of the ids, which are in ``[0, num_embeddings)``; None if ids
            are any int64.
        embedding_dim: size of a row.
        padding_idx: id whose row is zero and is not trained. With ``num_embeddings``, a negative
            value counts from the end, as in torch.
        name: name of the table; by default, the path of the module in the model. Modules with the
            same name share one table.
        initializer: distribution of a new row: ``"uniform"``, ``"normal"``, ``"zeros"``,
            ``"constant"``, ``"xavier_uniform"``, ``"xavier_normal"``, or a name with arguments
            such as ``("normal", {"std": 0.01})``.
        min_count: number of updates with an id after which the id gets a row and is trained.
            Before that, the id has its initial values and needs memory for a counter only.
        max_age: number of updates without use after which a row is removed; None for no limit.
        max_rows: approximate largest number of rows over all servers; None for no limit. The least
            recently used rows are removed. A removed id that is used again starts anew.
        max_bytes: the same limit as ``max_rows``, in bytes of rows, optimizer state and index.
        storage_dtype: type of rows in memory: ``"fp32"``, ``"bf16"``, ``"fp16"``, or ``"int8"``
            for a byte per element and one for the scale of the row. Optimizer state and output
            are always float32. An update rounds shorter rows stochastically, so that small
            updates are effective on average. None for ``torch-edl run --storage-dtype``, or
            float32.
        storage: ``"memory"``, or ``"disk:DIR"`` for rows and optimizer state in a folder on a local
            disk of each server, for tables that are larger than the memory. None for ``torch-edl
            run --table-storage``, or memory.

    Example:
        >>> embedding = torch_edl.nn.Embedding(None, 16)
        >>> embedding(torch.tensor([[7, -3], [2**60, 7]])).shape
        torch.Size([2, 2, 16])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return rows (*input.shape, embedding_dim) of int64 ids."""
        return self.rows(input)


class EmbeddingBag(Table):
    """Embedding like :class:`torch.nn.EmbeddingBag`, with a table that grows as new ids appear.

    Args:
        num_embeddings, embedding_dim, padding_idx, name, initializer, min_count, max_age,
            max_rows, max_bytes, storage_dtype, storage: as in :class:`Embedding`.
        mode: ``sum``; ``mean``, divided by the sum of weights; or ``sqrtn``, divided by the root of
            the sum of squared weights. The default weight is 1; the weight of padding is 0.
        include_last_offset: True if ``offsets`` ends with the length of ``input``.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        name: str | None = None,
        initializer: InitializerLike = "uniform",
        min_count: int = 0,
        max_age: int | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        storage_dtype: str | None = None,
        storage: str | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name=name,
            initializer=initializer,
            min_count=min_count,
            max_age=max_age,
            max_rows=max_rows,
            max_bytes=max_bytes,
            storage_dtype=storage_dtype,
            storage=storage,
        )
        if mode not in _MODES:
            raise UsageError(f"mode {mode!r}: choose one of {', '.join(_MODES)}")
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return one vector for each bag, (bags, embedding_dim).

        Args:
            input: int64 ids (bags, n), or (n,) with ``offsets``.
            offsets: start of each bag in a flat ``input``, (bags,).
            per_sample_weights: weight of each id, in the shape of ``input``.
        """
        bags, bag = self._bags(input, offsets)
        flat = input.reshape(-1)
        weights = torch.ones(flat.shape, device=flat.device)
        if per_sample_weights is not None:
            if per_sample_weights.shape != input.shape:
                raise UsageError(
                    f"per_sample_weights of shape {tuple(per_sample_weights.shape)}: "
                    f"must be shaped as the ids, {tuple(input.shape)}"
                )
            weights = per_sample_weights.reshape(-1)
        if self.padding_idx is not None:
            weights = weights * (flat != self.padding_idx)
        rows = self.rows(flat)
        total = rows.new_zeros(bags, self.embedding_dim).index_add(
            0, bag, rows * weights.unsqueeze(-1)
        )
        if self.mode == "sum":
            return total
        square = self.mode == "sqrtn"
        norm = weights.new_zeros(bags).index_add(0, bag, weights * weights if square else weights)
        norm = norm.sqrt() if square else norm
        # An empty bag is zero, as in torch.
        return total / torch.where(norm == 0, torch.ones_like(norm), norm).unsqueeze(-1)

    def _bags(self, input: torch.Tensor, offsets: torch.Tensor | None) -> tuple[int, torch.Tensor]:
        if input.dim() == 2 and offsets is None:
            bags, each = input.shape
            return bags, torch.arange(bags, device=input.device).repeat_interleave(each)
        if input.dim() != 1 or offsets is None:
            raise UsageError(
                f"ids of shape {tuple(input.shape)}: give (bags, n) ids, or (n,) ids with offsets"
            )
        starts = offsets[:-1] if self.include_last_offset else offsets
        ends = torch.cat([starts[1:], starts.new_tensor([input.shape[0]])])
        if starts.numel() and (int(starts[0]) != 0 or bool((ends < starts).any())):
            raise UsageError("offsets: must begin with 0 and not decrease")
        index = torch.arange(starts.shape[0], device=input.device)
        return starts.shape[0], index.repeat_interleave(ends - starts)
