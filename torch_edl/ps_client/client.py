"""The servers of a job: a pull and a push are one call to each of them, side by side.

Every call may be repeated: the first initialisation wins, a repeated pull changes nothing, and a
server does not apply the records of a push twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from torch_edl.errors import ServersLostError, ServersReplacedError
from torch_edl.ps_client.connection import Answer, Call, Resolve, ShardConnection
from torch_edl.ps_client.partition import (
    Floats,
    Ids,
    Segment,
    TableIds,
    add_tables,
    dense_owners,
    elements,
    gathered_rows,
    segments,
)
from torch_edl.wire import cluster_pb2, codec, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.framed import Framed

Array = npt.NDArray[Any]
T = TypeVar("T")

BUFFER_GROUP = -2

_TIMEOUT_S = 30.0  # of a call
_HELLO_TIMEOUT_S = 3.0
_RESTORE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class DenseGradient:
    """The gradient of the dense parameters of one server."""

    flat: Floats
    """(n,) laid out as the segments of the server; the places of buffers hold their values."""
    untouched: list[int]
    """Places of segments that the loss did not reach."""


@dataclass
class PullResult:
    """What the servers answered; the values of one server are of one moment."""

    versions: list[int]
    """Version of each shard."""
    incarnations: list[int]
    """Of the servers that answered: the version says nothing of the parameters of another one."""
    dense: list[Floats | None]
    """Flat vector of each server; None: not requested, or not changed."""
    rows: list[Floats]
    """(u, dim) for each table of the request, in the order of its ``unique`` ids."""


class Pending(Generic[T]):
    """Calls in flight to all servers, and how their answers are combined."""

    def __init__(self, calls: Sequence[Call], combine: Callable[[list[Answer]], T]) -> None:
        self._calls = calls
        self._combine = combine

    def done(self) -> bool:
        """Whether every server has answered."""
        return all(call.done() for call in self._calls)

    def wait(self) -> T:
        """What the answers say together.

        Raises:
            ServersLostError: the model is of another incarnation, or a server cannot be reached.
            UsageError: a server rejected the content; the message says why.
        """
        for call in self._calls:  # first of all: lost servers are looked for side by side
            call.settle()
        return self._combine([call.result() for call in self._calls])


class PsClient:
    """The servers of one incarnation of the model, in the order of shards. The death of one that is
    replaced goes unnoticed.

    Args:
        resolve: says which server has a shard now; None: nobody does, and a call that fails is not
            repeated.
        wire_dtype: a name of :data:`~torch_edl.wire.codec.FLOAT_DTYPES`: what rows to train with
            and gradients travel as. Dense parameters are pulled in float32; their gradients are in
            float32, too, from servers that hold buffers, whose values travel among them.
    """

    def __init__(
        self,
        cluster: cluster_pb2.Cluster,
        *,
        job: str,
        token: str,
        resolve: Resolve | None = None,
        wire_dtype: str = "fp32",
    ) -> None:
        servers = cluster.servers
        self._model, self._resolve = cluster.incarnation, resolve
        self._dtype = codec.FLOAT_DTYPES[wire_dtype]
        self._connections = [
            ShardConnection(
                shard, server, job=job, token=token, model=cluster.incarnation, resolve=resolve
            )
            for shard, server in enumerate(servers)
        ]
        self.layout: list[list[Segment]] = [[] for _ in servers]
        self.exact: dict[str, Array] = {}
        """Values that are not float32 by name, as the servers had them at :meth:`initialize`."""
        self._has_buffers = [False for _ in servers]
        self._owners: dict[str, int] = {}

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return len(self._connections)

    def initialize(
        self,
        dense: Sequence[pb.DenseParameter],
        tables: Sequence[pb.EmbeddingTableInfo],
        optimizer: pb.OptimizerConfig,
        *,
        seed: int,
    ) -> None:
        """Tells every server what to hold. The values of the first caller stay.

        Args:
            dense: parameters and buffers, in the order of their names.

        Raises:
            UsageError: the servers hold a model of another layout.
        """
        # A short call first, so that servers that are gone are noticed soon.
        hello = [pb.PserverStatusRequest()] * self.servers
        self._ask(hello, timeout_s=_HELLO_TIMEOUT_S)
        self._owners = dense_owners({each.name: elements(each) for each in dense}, self.servers)
        parts = [[p for p in dense if self._owners[p.name] == s] for s in range(self.servers)]
        self.layout = [segments(mine) for mine in parts]
        self._has_buffers = [any(p.group == BUFFER_GROUP for p in mine) for mine in parts]
        table_calls = [pb.PushEmbeddingTableInfosRequest(infos=tables) for _ in parts]
        dense_calls = [
            pb.PushDenseParametersRequest(optimizer=optimizer, seed=seed, parameters=mine)
            for mine in parts
        ]
        # On these calls servers restore a checkpoint, which may be large.
        answers = self._ask(dense_calls, timeout_s=_RESTORE_TIMEOUT_S)
        self._ask(table_calls, timeout_s=_RESTORE_TIMEOUT_S)
        self.exact = {p.name: codec.from_proto(p.value) for a in answers for p in a.message.exact}

    def pull(
        self,
        tables: Sequence[TableIds],
        *,
        dense: bool = True,
        known: PullResult | None = None,
        read_only: bool = False,
    ) -> Pending[PullResult]:
        """Starts a pull of dense parameters and rows.

        Args:
            known: what the caller has the dense parameters from.
            read_only: create no rows for unseen ids; rows come in float32.
        """
        calls = []
        for server in range(self.servers):
            request = pb.PullRequest(
                dense=dense,
                dense_version=known.versions[server] if known else -1,
                read_only=read_only,
                row_dtype=tensor_pb2.DT_FLOAT if read_only else self._dtype,
            )
            call = Framed(request)
            add_tables(call, tables, server)
            calls.append(call)

        def combine(answers: list[Answer]) -> PullResult:
            return PullResult(
                versions=[answer.message.version for answer in answers],
                incarnations=[answer.incarnation for answer in answers],
                dense=[
                    answer.floats(answer.message.dense) if answer.message.dense.dtype else None
                    for answer in answers
                ],
                rows=[
                    gathered_rows(table, [a.floats(a.message.vectors[index]) for a in answers])
                    for index, table in enumerate(tables)
                ],
            )

        return Pending(self._start(calls, known=known.incarnations if known else None), combine)

    def push(
        self,
        dense: Sequence[DenseGradient] | None,
        tables: Sequence[tuple[TableIds, Floats]],
        *,
        records: pb.RecordRange,
        versions: Sequence[int],
        retired_before: int,
        learning_rates: Sequence[float] = (),
        exact: Mapping[str, Array] | None = None,
    ) -> Pending[bool]:
        """Starts a push of gradients. The answer is False if a gradient is too old for a server
        (sync mode): pull, compute and push again.

        Args:
            dense: gradient of each server's parameters; None: no update.
            tables: for each table its ids and their summed gradients (u, dim), which must not
                change until the answer has come.
            records: where the gradient comes from; a server applies each range once.
            versions: of the parameters of each server that it was computed with.
            exact: new values of what is not float32, by name.
        """
        calls = []
        for server in range(self.servers):
            request = pb.PushGradientsRequest(
                range=records,
                version=versions[server],
                retired_before=retired_before,
                learning_rates=learning_rates,
            )
            call = Framed(request)
            if self.layout[server] and dense is not None:
                dtype = tensor_pb2.DT_FLOAT if self._has_buffers[server] else self._dtype
                flat = dense[server].flat
                if dtype == tensor_pb2.DT_FLOAT:
                    flat = flat.copy()  # the worker collects the next gradient in the same place
                call.put_floats(request.dense, flat, dtype)
                request.without_gradient.extend(dense[server].untouched)
            for name, value in (exact or {}).items():
                if self._owners[name] == server:
                    request.exact.add(name=name, value=codec.to_proto(value))
            add_tables(call, [table for table, _ in tables], server)
            for entry, (table, gradients) in zip(request.tables, tables, strict=True):
                call.put_floats(entry.values, gradients[table.ids.part(server)], self._dtype)
            calls.append(call)
        futures = self._start(calls)
        return Pending(futures, lambda answers: all(a.message.accepted for a in answers))

    def rows(self, table: str, dim: int) -> tuple[Ids, Floats]:
        """All rows of a table that exist: ids (n,) in no order, and vectors (n, dim)."""
        scans = [_Scan(self._connections[server], table) for server in range(self.servers)]
        while open_ := [scan for scan in scans if scan.cursor >= 0]:
            asked = [scan.start() for scan in open_]
            for scan, answer in zip(open_, Pending(asked, list).wait(), strict=True):
                scan.take(answer)
        ids, vectors = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)]
        for scan in scans:
            ids += [codec.ids_from_bytes(page.ids) for page in scan.pages]
            vectors += [codec.from_proto(page.vectors) for page in scan.pages]
        return np.concatenate(ids), np.concatenate(vectors)

    def watermarks(self, task_id: int) -> int:
        """Records of the task from its start that every server has applied."""
        calls = [pb.GetWatermarksRequest(task_ids=[task_id]) for _ in range(self.servers)]
        answers = self._ask(calls)
        return min(int(a.message.offsets[0]) for a in answers)

    @property
    def newest(self) -> int:
        """The newest server that this client knows."""
        return max((each.incarnation for each in self._connections), default=0)

    def follow(self, newest: int) -> None:
        """Servers up to this incarnation listen: a call that waits for one that hangs is sent to
        its successor, or fails where the model is of another incarnation."""
        if self._resolve is None or newest <= self.newest:
            return
        cluster = self._resolve(0, 0)
        if cluster.incarnation != self._model:
            self.close(ServersReplacedError)
        for connection, server in zip(self._connections, cluster.servers, strict=False):
            connection.moved(server)

    def close(self, error: type[ServersLostError] = ServersLostError) -> None:
        """Closes the connections; calls in flight fail with ``error``."""
        for connection in self._connections:
            connection.close(error)

    def _start(
        self,
        calls: Sequence[Any],
        *,
        timeout_s: float = _TIMEOUT_S,
        known: Sequence[int] | None = None,
    ) -> list[Call]:
        """Starts one call to each server.

        Args:
            known: incarnations of the servers of whose state the calls tell.
        """
        return [
            connection.start(call, timeout_s=timeout_s, known=incarnation)
            for connection, call, incarnation in zip(
                self._connections, calls, known or [-1] * self.servers, strict=True
            )
        ]

    def _ask(self, calls: Sequence[Any], **how: Any) -> list[Answer]:
        """As :meth:`_start`, and waits for the answers; raises as :meth:`Pending.wait`."""
        return Pending(self._start(calls, **how), list).wait()


class _Scan:
    """The pages of one table on one shard; again from the first one if another server has it."""

    def __init__(self, connection: ShardConnection, table: str) -> None:
        self._connection, self._table = connection, table
        self._incarnation = -1
        self.cursor = 0
        """-1: all are read."""
        self.pages: list[pb.ReadRowsResponse] = []

    def start(self) -> Call:
        request = pb.ReadRowsRequest(name=self._table, cursor=self.cursor)
        return self._connection.start(request, timeout_s=_TIMEOUT_S, known=self._incarnation)

    def take(self, answer: Answer) -> None:
        if answer.incarnation != self._incarnation:
            self._incarnation = answer.incarnation
            self.pages.clear()
        self.pages.append(answer.message)
        self.cursor = answer.message.cursor
