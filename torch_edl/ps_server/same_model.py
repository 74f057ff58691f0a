"""The description of the model by the first worker, and its comparison with those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from torch_edl.errors import UsageError
from torch_edl.tables.dense import DenseShard
from torch_edl.tables.table import EmbeddingTable, storage_dtype
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import shard_state_pb2 as state_pb


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


def describe(
    first: pb.PushDenseParametersRequest,
    exact: Mapping[str, npt.NDArray[Any]],
    steps: Sequence[int],
    tables: Sequence[tuple[EmbeddingTable, int]],
) -> state_pb.ShardState:
    """Return the description of a shard for a snapshot.

    Args:
        first: the first worker's request, see :func:`without_values`.
        exact: values that are not float32, by name.
        steps: number of updates of each dense parameter.
        tables: tables with their steps.
    """
    state = state_pb.ShardState(dense=first, steps=steps)
    for parameter in state.dense.parameters:
        if parameter.name in exact:
            parameter.value.CopyFrom(codec.to_proto(exact[parameter.name]))
    for table, step in tables:
        state.tables.add(info=table.info, declared=table.declared, seed=table.seed, step=step)
    return state
