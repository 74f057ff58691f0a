"""Which server has what: a row belongs to a server by the hash of its id (``_core.owner``), a dense
parameter by its size. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2
from torch_edl.wire.framed import Framed

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartitionedIds:
    """The ids of one lookup without duplicates, grouped by the server that owns them."""

    unique: Ids
    """(u,) distinct ids, those of server 0 first."""
    offsets: Ids
    """(servers + 1,) where each server's part begins."""
    inverse: Ids
    """(n,) position in ``unique`` of each id that was asked for."""

    @classmethod
    def of(cls, ids: Ids, servers: int) -> PartitionedIds:
        """Groups ``ids`` (n,), duplicates allowed, by owner."""
        return cls(*_core.unique_partition(ids, servers))

    def part(self, server: int) -> slice:
        """The rows that ``server`` owns."""
        return slice(int(self.offsets[server]), int(self.offsets[server + 1]))


@dataclass(frozen=True)
class TableIds:
    """The rows of one table to pull or push. Two tables may share one ``PartitionedIds``: the ids
    are then sent once."""

    name: str
    dim: int
    ids: PartitionedIds


@dataclass(frozen=True)
class Segment:
    """The place of a dense parameter in the flat vector of its server."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


def dense_owners(sizes: Mapping[str, int], shards: int) -> dict[str, int]:
    """Spreads dense parameters, each whole, so that the fullest server is little above the mean.

    The largest goes first, each to the server that has least so far (Graham 1969: at most 4/3 of
    the best). Equal input gives equal output, whatever its order, so that every worker sees the
    same partition without asking.

    Args:
        sizes: name to size, in any one unit.
        shards: number of servers.

    Returns:
        Name to server in ``[0, shards)``.
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
    """The number of elements of a dense parameter."""
    return math.prod(d.size for d in parameter.value.tensor_shape.dim)


def segments(parameters: Iterable[pb.DenseParameter]) -> list[Segment]:
    """The layout of the flat vector of one server: its float32 values, in this order."""
    made, start = [], 0
    for each in parameters:
        if each.value.dtype == tensor_pb2.DT_FLOAT:
            shape = tuple(d.size for d in each.value.tensor_shape.dim)
            made.append(Segment(each.name, shape, start, elements(each)))
            start += made[-1].size
    return made


def add_tables(call: Framed, tables: Sequence[TableIds], server: int) -> None:
    """Adds to a call the ids of each table that ``server`` owns."""
    seen: dict[int, int] = {}
    for number, table in enumerate(tables, start=1):
        entry = call.message.tables.add(name=table.name)
        first = seen.setdefault(id(table.ids), number)
        if first < number:
            entry.same_ids_as = first
        else:
            call.put_ids(entry, table.ids.unique[table.ids.part(server)])


def gathered_rows(table: TableIds, parts: Sequence[Floats]) -> Floats:
    """Rows (u, dim) of a table, of which each server sent those that it owns."""
    out = np.empty((len(table.ids.unique), table.dim), np.float32)
    for server, part in enumerate(parts):
        out[table.ids.part(server)] = part
    return out
