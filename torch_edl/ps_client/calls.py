"""Pulls and pushes of float32 values, which the compiled core encodes.

A call that has to be repeated at another server is encoded as a message instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_edl import _core
from torch_edl.ps_client.partition import DenseGradient, Floats, TableIds, add_tables
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2
from torch_edl.wire.codec import Framed

Lookups = list[tuple[str, Any, Any]]


def lookups(tables: Sequence[TableIds]) -> Lookups:
    """Return name, unique ids and offsets of each table, for the compiled core."""
    return [(table.name, table.ids.unique, table.ids.offsets) for table in tables]


@dataclass
class CompiledCall(ABC):
    """A call to one server."""

    server: int
    tables: Sequence[TableIds]
    lookups: Lookups
    """:func:`lookups` of the tables."""
    job = ""
    incarnation = 0

    def address(self, job: str, incarnation: int, known: int) -> None:
        """Set the fence.

        Args:
            known: incarnation of the server to whose state the request refers; the reference is
                removed for any other server.
        """
        self.job, self.incarnation = job, incarnation

    @abstractmethod
    def encode(
        self, key: bytes, number: int, memory: _core.SharedMemory | None
    ) -> tuple[list[Any], list[Any], Any]:
        """See :class:`~torch_edl.wire.data_plane.stub.CompiledRequest`."""

    @abstractmethod
    def framed(self, dtype: tensor_pb2.DataType = tensor_pb2.DT_FLOAT) -> Framed:
        """Return the call as a message, with rows and gradients of a type on the wire."""


@dataclass
class PullCall(CompiledCall):
    """A pull of dense parameters and rows."""

    dense: bool
    dense_version: int
    read_only: bool
    answer_bytes: int

    def address(self, job: str, incarnation: int, known: int) -> None:
        super().address(job, incarnation, known)
        if incarnation != known:
            self.dense_version = -1

    def encode(
        self, key: bytes, number: int, memory: _core.SharedMemory | None
    ) -> tuple[list[Any], list[Any], Any]:
        return _core.encode_pull(
            key, number, memory, self.job, self.incarnation, self.dense, self.dense_version,
            self.read_only, self.lookups, self.server, self.answer_bytes,
        )  # fmt: skip

    def framed(self, dtype: tensor_pb2.DataType = tensor_pb2.DT_FLOAT) -> Framed:
        request = pb.PullRequest(
            dense=self.dense,
            dense_version=self.dense_version,
            read_only=self.read_only,
            row_dtype=dtype,
        )
        call = Framed(request, answer_bytes=self.answer_bytes)
        add_tables(call, self.tables, self.server)
        return call


@dataclass
class PushCall(CompiledCall):
    """A push of gradients."""

    dense: DenseGradient | None
    gradients: list[Floats]
    """Gradient (u, dim) of each table."""
    records: pb.RecordRange
    version: int
    retired_before: int
    learning_rates: Sequence[float]

    def encode(
        self, key: bytes, number: int, memory: _core.SharedMemory | None
    ) -> tuple[list[Any], list[Any], Any]:
        r, dense = self.records, self.dense
        return _core.encode_push(
            key, number, memory, self.job, self.incarnation, (r.task_id, r.first, r.last),
            self.version, self.retired_before, self.learning_rates, dense.flat if dense else None,
            dense.untouched if dense else (), self.lookups, self.gradients, self.server,
        )  # fmt: skip

    def framed(
        self,
        dtype: tensor_pb2.DataType = tensor_pb2.DT_FLOAT,
        dense_dtype: tensor_pb2.DataType | None = None,
    ) -> Framed:
        """See :class:`CompiledCall`; dense gradients may have another type."""
        request = pb.PushGradientsRequest(
            range=self.records,
            version=self.version,
            retired_before=self.retired_before,
            learning_rates=self.learning_rates,
        )
        call = Framed(request)
        if self.dense is not None:
            call.put_floats(request.dense, self.dense.flat, dense_dtype or dtype)
            request.without_gradient.extend(self.dense.untouched)
        add_tables(call, self.tables, self.server)
        for entry, table, gradient in zip(request.tables, self.tables, self.gradients, strict=True):
            call.put_floats(entry.values, gradient[table.ids.part(self.server)], dtype)
        return call
