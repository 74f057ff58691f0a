"""The description of the model by the first worker, and its comparison with those of others."""

from __future__ import annotations

from collections.abc import Sequence

from torch_edl.errors import UsageError
from torch_edl.tables.dense import DenseShard
from torch_edl.tables.table import storage_dtype
from torch_edl.wire import pserver_pb2 as pb


def require_same_dense(given: DenseShard, first: DenseShard) -> None:
    """Raise UsageError, naming a difference, unless both have the same layout and optimizer."""
    new, old = given.layout(), first.layout()
    if new != old:
        raise UsageError(
            f"dense parameters: another layout than the first worker's; {_difference(new, old)}"
        )
    if not given.optimizers.same(first.optimizers):
        raise UsageError(
            f"optimizer {given.optimizers}: the first worker's is {first.optimizers}; use one "
            "optimizer that both model files mean alike, such as SGD or Adagrad, or one model file"
        )


def require_same_table(given: pb.EmbeddingTableInfo, first: pb.EmbeddingTableInfo) -> None:
    """Raise UsageError with both descriptions unless they describe the same table."""
    if not _alike(first, given):
        raise UsageError(
            f"table {given.name}: not the first worker's; that one is {_line(first)}, this one "
            f"{_line(given)}"
        )


def _alike(first: pb.EmbeddingTableInfo, other: pb.EmbeddingTableInfo) -> bool:
    """Return whether two workers describe the same table. Measured initializers may differ, since
    each worker draws its own weights."""
    if not (first.initializer.measured and other.initializer.measured):
        return first == other
    same = pb.EmbeddingTableInfo()
    same.CopyFrom(other)
    same.initializer.CopyFrom(first.initializer)
    return first == same


def _line(info: pb.EmbeddingTableInfo) -> str:
    start, args = info.initializer.kind, dict(sorted(info.initializer.args.items()))
    return (
        f"dim {info.dim}, num_embeddings {info.num_embeddings}, group {info.group}, "
        f"min_count {info.min_count}, max_age {info.max_age}, max_rows {info.max_rows}, "
        f"max_bytes {info.max_bytes}, storage_dtype {storage_dtype(info)}, "
        f"rows start as {start} {args}"
    )


def _difference(new: Sequence[tuple[object, ...]], old: Sequence[tuple[object, ...]]) -> str:
    for ours, theirs in zip(old, new, strict=False):
        if ours != theirs:
            return f"here {ours}, there {theirs}"
    return f"here {len(old)} parameters, there {len(new)}"


def without_values(request: pb.PushDenseParametersRequest) -> pb.PushDenseParametersRequest:
    """Return the request without the values of parameters."""
    described = pb.PushDenseParametersRequest(optimizer=request.optimizer, seed=request.seed)
    for given in request.parameters:
        parameter = described.parameters.add(name=given.name, group=given.group)
        parameter.aliases.extend(given.aliases)
        parameter.value.dtype = given.value.dtype
        parameter.value.tensor_shape.CopyFrom(given.value.tensor_shape)
    return described
