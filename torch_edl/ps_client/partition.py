"""Which server holds what: rows by hash of their id (``_core.owner``), dense parameters by size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

BUFFER_GROUP = -2


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


@dataclass(frozen=True)
class DenseGradient:
    """The gradient of the dense parameters of one server."""

    flat: Floats
    """(n,) laid out as the segments of the server; the places of buffers hold their values."""
    untouched: list[int]
    """Places of segments that the loss did not reach."""


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
