"""A shard at one moment, to be written while pushes continue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import shard_state_pb2 as state_pb
from torch_edl.wire.codec import Framed


@dataclass(frozen=True)
class Cut:
    """A shard at one moment, for a checkpoint. The snapshots of its dense values and tables have
    begun, and can be read later."""

    version: int
    dense: Callable[[], dict[str, npt.NDArray[Any]]]
    """Function that returns the dense values, see :meth:`DenseShard.begin_snapshot`."""
    tables: list[tuple[EmbeddingTable, int]]
    """Tables with their steps."""


@dataclass(frozen=True)
class Frozen:
    """A shard after one record, for its log, without the dense values: these are read later, in
    parts, each with the number of its last record."""

    sequence: int
    """Number of the record."""
    state: state_pb.ShardState
    waiting: Sequence[Framed]
    """Pushes that wait for their quorum, in order of arrival."""
    tables: list[tuple[EmbeddingTable, int]]
    """Tables, whose snapshots have begun, with their steps."""
