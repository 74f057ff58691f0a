"""Partition of the model over servers. The owner of a row is a hash of its id (``_core.owner``);
dense parameters are distributed by size. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2
from torch_edl.wire.codec import Framed

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartitionedIds:
    """The unique ids of one lookup, grouped by the server that owns them."""

    unique: Ids
    """(u,) unique ids, ordered by server."""
    offsets: Ids
    """(servers + 1,) start of each server's part."""
    inverse: Ids
    """(n,) index in ``unique`` of each requested id."""

    @classmethod
    def of(cls, ids: Ids, servers: int) -> PartitionedIds:
        """Group ``ids`` (n,), which may contain duplicates, by owner."""
        return cls(*_core.unique_partition(ids, servers))

    def count(self, server: int) -> int:
        """Return the number of ids that ``server`` owns."""
        return int(self.offsets[server + 1] - self.offsets[server])

    def part(self, server: int) -> slice:
        """Return the slice of ids and rows that ``server`` owns."""
        return slice(int(self.offsets[server]), int(self.offsets[server + 1]))


@dataclass(frozen=True)
class TableIds:
    """The rows of one table to pull or push.

    If two tables share one ``PartitionedIds``, the ids are sent once.
    """

    name: str
    dim: int
    ids: PartitionedIds


@dataclass(frozen=True)
class DenseGradient:
    """The gradient of the dense parameters of one server."""

    flat: Floats
    """(n,) in the layout of the server's segments; the ranges of buffers hold their new values."""
    untouched: list[int]
    """Indices of the segments without a gradient."""


@dataclass(frozen=True)
class DenseSegment:
    """Position of a dense parameter in the flat vector of its server."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


def dense_owners(sizes: Mapping[str, int], shards: int) -> dict[str, int]:
    """Assign whole dense parameters to servers so that the load is balanced.

    The parameters are assigned by decreasing size to the server with the smallest load so far
    (Graham 1969: at most 4/3 of the optimum). The result does not depend on the order of the
    input, so every worker computes the same partition.

    Args:
        sizes: size of each parameter by name, in any unit.
        shards: number of servers.

    Returns:
        Server in ``[0, shards)`` by name.
    """
    assert shards >= 1, shards
    load = [0] * shards
    owners = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        server = min(range(shards), key=load.__getitem__)
        owners[name] = server
        load[server] += sizes[name]
    return owners


def elements(parameter: pb.DenseParameter) -> int:
    """Return the number of elements of a dense parameter."""
    return math.prod(d.size for d in parameter.value.tensor_shape.dim)


def segments(parameters: Iterable[pb.DenseParameter]) -> list[DenseSegment]:
    """Return the layout of one server's flat vector: its float32 values, in this order."""
    made, start = [], 0
    for each in parameters:
        if each.value.dtype == tensor_pb2.DT_FLOAT:
            shape = tuple(d.size for d in each.value.tensor_shape.dim)
            made.append(DenseSegment(each.name, shape, start, elements(each)))
            start += made[-1].size
    return made


def add_tables(call: Framed, tables: Sequence[TableIds], server: int) -> None:
    """Add the ids of each table that ``server`` owns to a call."""
    seen: dict[int, int] = {}
    for number, table in enumerate(tables, start=1):
        entry = call.message.tables.add(name=table.name)
        first = seen.setdefault(id(table.ids), number)
        if first < number:
            entry.same_ids_as = first
        else:
            call.put_ids(entry, table.ids.unique[table.ids.part(server)])
