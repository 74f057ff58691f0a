"""Bags of rows, reduced to one vector each."""

from __future__ import annotations

import torch

from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.initializers import InitializerLike

MODES = ("sum", "mean", "sqrtn")


class EmbeddingBag(Table):
    """Like :class:`torch.nn.EmbeddingBag`, over a table that grows id by id.

    Args:
        num_embeddings, embedding_dim, padding_idx, name, initializer, min_count, max_age: as in
            :class:`Embedding`.
        mode: ``sum``; ``mean``: divided by the sum of weights; ``sqrtn``: divided by the root of
            the sum of squared weights. A row without a weight weighs 1, padding weighs 0.
        include_last_offset: ``offsets`` ends with the length of ``input``.
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
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name=name,
            initializer=initializer,
            min_count=min_count,
            max_age=max_age,
        )
        if mode not in MODES:
            raise UsageError(f"mode {mode!r}: choose one of {', '.join(MODES)}")
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One vector per bag, (bags, embedding_dim).

        Args:
            input: int64 ids, (bags, n), or (n,) with ``offsets``.
            offsets: (bags,) where each bag begins in a flat ``input``.
            per_sample_weights: weight of each id, shaped as ``input``.
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
        # An empty bag is zero, as torch has it.
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
