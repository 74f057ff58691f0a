"""What workers send: a push, decoded and checked, the mean of several pushes for sync mode, and the
description of the model, which is compared with that of the first worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.tables.dense import Array, DenseShard
from torch_edl.tables.table import EmbeddingTable, Floats, Ids, storage_dtype
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb


class Gradients(NamedTuple):
    """The content of one push, or the mean of several."""

    dense: Floats | None
    """Flat gradient of the shard (n,); None if the push has none."""
    tables: list[tuple[EmbeddingTable, Ids, Floats]]
    """For each table, ids (n,) and gradients (n, dim)."""
    rates: list[float]
    """Learning rates, one per parameter group; empty for the groups' own rates."""
    untouched: frozenset[int] = frozenset()
    """Indices of dense parameters without a gradient; ``dense`` is zero there in sync mode, and
    undefined otherwise."""
    exact: Mapping[str, Array] = MappingProxyType({})
    """New values of buffers that are not float32, by name."""


NO_GRADIENTS = Gradients(None, [], [])


class Push(NamedTuple):
    """A push whose content was checked."""

    task_id: int
    first: int
    last: int
    version: int
    """Version of the parameters that the gradients were computed with."""
    retired_before: int
    """All tasks below this number are complete."""
    gradients: Gradients
    message: pb.PushGradientsRequest | bytes
    """The request as it was received, or its encoding."""
    frames: codec.Frames

    @classmethod
    def of(
        cls, request: pb.PushGradientsRequest, gradients: Gradients, frames: codec.Frames
    ) -> Push:
        """Return the push of a request, whose content was decoded.

        Raises:
            UsageError: a task has a negative number.
        """
        if request.range.task_id < 0 or request.retired_before < 0:
            raise UsageError(
                f"push of task {request.range.task_id}, retired_before {request.retired_before}: "
                "tasks count from 0"
            )
        r, version, retired = request.range, request.version, request.retired_before
        return cls(r.task_id, r.first, r.last, version, retired, gradients, request, frames)

    def encoded(self) -> bytes:
        """Return the encoded request."""
        if isinstance(self.message, bytes):
            return self.message
        return self.message.SerializeToString()


def table_named(name: str, tables: Mapping[str, EmbeddingTable]) -> EmbeddingTable:
    """Return the table of that name; raise UsageError if there is none."""
    table = tables.get(name)
    if table is None:
        raise UsageError(f"table {name!r}: unknown here; there are: {sorted(tables)}")
    return table


def decode(
    request: pb.PushGradientsRequest,
    dense: DenseShard,
    tables: Mapping[str, EmbeddingTable],
    frames: codec.Frames = (),
    *,
    for_mean: bool,
) -> Gradients:
    """Return the content of a push as views, fully checked: applying it cannot fail half-way.

    Args:
        for_mean: set parameters without a gradient to zero.

    Raises:
        UsageError: the content does not fit the shard, or a value is not finite.
    """
    flat: Floats | None = None
    untouched = frozenset(request.without_gradient)
    if request.HasField("dense"):
        try:
            flat = codec.floats(request.dense, frames)
        except UsageError as error:
            raise UsageError(f"dense gradient: {error}") from None
        dense.check(flat, untouched)
        if untouched and for_mean:
            flat = flat.copy()
            for place in untouched:
                parameter = dense.parameters[place]
                flat[parameter.start : parameter.stop] = 0
    rows = _decode_tables(request, tables, frames)
    rates = list(request.learning_rates)
    dense.optimizers.rates(rates)  # checks their number
    exact = dense.decode_exact(request.exact)
    return Gradients(flat, rows, rates, untouched, exact)


def _decode_tables(
    request: pb.PushGradientsRequest,
    tables: Mapping[str, EmbeddingTable],
    frames: codec.Frames,
) -> list[tuple[EmbeddingTable, Ids, Floats]]:
    given: dict[EmbeddingTable, tuple[bytes | memoryview, bytes | memoryview, str]] = {}
    ids: list[bytes | memoryview] = []
    for entry in request.tables:
        table = table_named(entry.name, tables)
        if table in given:
            raise UsageError(f"table {entry.name}: twice in one push; sum the gradients")
        ids.append(codec.entry_ids(entry, ids, frames))
        dtype = table.gradient_dtype(entry.values, codec.count_ids(ids[-1]))
        given[table] = (ids[-1], codec.content_of(entry.values, frames), dtype)
    try:
        decoded = _core.decode_gradients([(table.core, *each) for table, each in given.items()])
    except ValueError as error:
        raise UsageError(str(error)) from None
    return [(table, *each) for table, each in zip(given, decoded, strict=True)]


def split(pushes: Sequence[Push], targets: Watermarks | None) -> tuple[list[Push], list[Push]]:
    """Return the pushes whose records are within ``targets``, and the others; None includes all."""
    within: list[Push] = []
    beyond: list[Push] = []
    for push in pushes:
        wanted = targets is None or push.last <= targets.offset(push.task_id)
        (within if wanted else beyond).append(push)
    return within, beyond


def mean(pushes: Sequence[Gradients], assigned: Sequence[slice] = ()) -> Gradients:
    """Return the mean of pushes; an id or parameter that a push lacks counts as zero.

    Rates, and values that are not float32, are those of the last push.

    Args:
        assigned: slices of ``dense`` that hold values, not gradients: values are averaged over the
            pushes that have them.
    """
    if len(pushes) == 1:
        return pushes[0]
    scale = np.float32(1 / len(pushes))
    moving = [p for p in pushes if p.dense is not None]
    dense = [p.dense for p in moving if p.dense is not None]
    by_table: dict[EmbeddingTable, list[tuple[Ids, Floats]]] = {}
    for push in pushes:
        for table, ids, values in push.tables:
            by_table.setdefault(table, []).append((ids, values))
    tables = []
    for table, parts in by_table.items():
        unique, _, inverse = _core.unique_partition(np.concatenate([i for i, _ in parts]), 1)
        sums = np.empty((len(unique), table.dim), np.float32)
        _core.scatter_sum(np.concatenate([v for _, v in parts]), inverse, sums)
        sums *= scale
        tables.append((table, unique, sums))
    total: Floats | None = None
    if dense:
        total = dense[0] * scale
        for other in dense[1:]:
            total += other * scale
        for part in assigned:
            total[part] *= len(pushes) / len(dense)
    return Gradients(
        dense=total,
        tables=tables,
        rates=pushes[-1].rates,
        untouched=frozenset.intersection(*(p.untouched for p in moving)) if moving else frozenset(),
        exact={name: value for p in pushes for name, value in p.exact.items()},
    )


def require_same_dense(given: DenseShard, first: DenseShard) -> None:
    """Raise UsageError, naming a difference, unless both have the same layout and optimizer."""
    new, old = given.layout(), first.layout()
    if new != old:
        raise UsageError(
            f"dense parameters: another layout than the first worker's; {_difference(new, old)}"
        )
    if not given.optimizers.same(first.optimizers):
        raise UsageError(
            f"optimizer {given.optimizers}: the first worker's is {first.optimizers}; use an "
            "optimizer that both frameworks compute alike, such as SGD, or one model file"
        )


def require_same_table(given: pb.EmbeddingTableInfo, first: pb.EmbeddingTableInfo) -> None:
    """Raise UsageError with both descriptions unless they describe the same table."""
    if not _alike(first, given):
        raise UsageError(
            f"table {given.name}: not the first worker's; that one is {_line(first)}, this one "
            f"{_line(given)}; run the same model in all workers"
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
        f"storage {'disk:' + info.folder if info.folder else 'memory'}, "
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
