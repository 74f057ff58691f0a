"""A shard at one moment, for what is written while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import shard_state_pb2 as state_pb


@dataclass(frozen=True)
class Cut:
    """A shard at one moment. The snapshots of its dense values and tables have begun, so that they
    can be read later."""

    version: int
    dense: Callable[[], dict[str, npt.NDArray[Any]]]
    """See :meth:`DenseShard.begin_snapshot`."""
    tables: list[tuple[EmbeddingTable, int]]
    """Each table with its step."""


@dataclass(frozen=True)
class Frozen:
    """A shard after one record, for its log, but for the values of dense parameters: these are read
    later, a part at a time, each with the number of the record that it is after."""

    sequence: int
    """Of the record."""
    state: state_pb.ShardState
    waiting: Sequence[bytes]
    """The requests that wait for their quorum."""
    tables: list[tuple[EmbeddingTable, int]]
    """Each table, whose snapshot has begun, with its step."""
