"""Pull from and push to all parameter servers of a job, with one concurrent call to each server.

Every call may be repeated: the first initialization wins, a repeated pull changes nothing, and a
server does not apply the records of a push twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from torch_edl import _core
from torch_edl.errors import ServersLostError, ServersReplacedError
from torch_edl.ps_client.calls import PullCall, PushCall, lookups
from torch_edl.ps_client.connection import Answer, Call, Resolve, ShardConnection
from torch_edl.ps_client.partition import (
    DenseGradient,
    DenseSegment,
    Floats,
    Ids,
    TableIds,
    dense_owners,
    elements,
    segments,
)
from torch_edl.wire import cluster_pb2, codec, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.codec import Array, Framed
from torch_edl.wire.data_plane.stub import ReceivedPull

T = TypeVar("T")

BUFFER_GROUP = -2

_TIMEOUT_S = 30.0  # of one attempt of a call
_HELLO_TIMEOUT_S = 3.0
_RESTORE_TIMEOUT_S = 600.0


@dataclass
class PullResult:
    """Answers of all servers. The values from one server are a consistent snapshot."""

    versions: list[int]
    """Version of each shard's parameters."""
    incarnations: list[int]
    """Incarnation of each server that answered; a version is valid for one incarnation only."""
    dense: list[Floats | None]
    """Flat vector of each server; None if it was not requested or has not changed."""
    rows: list[Floats]
    """Rows (u, dim) of each requested table, in the order of its ``unique`` ids."""


class Pending(Generic[T]):
    """Calls in flight to all servers, with a function that combines the answers."""

    def __init__(self, calls: Sequence[Call], combine: Callable[[list[Answer]], T]) -> None:
        self._calls = calls
        self._combine = combine

    def done(self) -> bool:
        """Return True if every server has answered."""
        return all(call.done() for call in self._calls)

    def wait(self) -> T:
        """Wait for all answers and return the combined result.

        Raises:
            ServersLostError: the model has a new incarnation, or a server is unreachable.
            UsageError: a server rejected the request; the message contains the reason.
        """
        for call in self._calls:  # all first, so that failed calls are repeated at the same time
            call.settle()
        return self._combine([call.result() for call in self._calls])


class PsClient:
    """The servers of one incarnation of the model, in the order of shards.

    The client hides the replacement of a lost server from the caller.

    Args:
        resolve: returns the current server of a shard; None to fail a call instead of repeating it
            at another server.
        wire_dtype: type of rows and gradients on the wire, a name of
            :data:`~torch_edl.wire.codec.FLOAT_DTYPES`. Dense parameters are always pulled in
            float32. Dense gradients are sent in float32 to servers that hold buffers, because the
            same vector contains the values of the buffers.
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
        self.layout: list[list[DenseSegment]] = [[] for _ in servers]
        self.exact: dict[str, Array] = {}
        """Buffers that are not float32, by name, as stored on the servers at :meth:`initialize`."""
        self._has_buffers = [False for _ in servers]
        self._owners: dict[str, int] = {}

    @property
    def servers(self) -> int:
        """Number of servers."""
        return len(self._connections)

    def initialize(
        self,
        dense: Sequence[pb.DenseParameter],
        tables: Sequence[pb.EmbeddingTableInfo],
        optimizer: pb.OptimizerConfig,
        *,
        seed: int,
    ) -> None:
        """Send the model to all servers. If they have a model already, they keep its values.

        Args:
            dense: parameters and buffers, sorted by name.

        Raises:
            UsageError: the servers hold a model with another layout.
        """
        # A call with a short timeout first, to notice lost servers soon.
        hello = [pb.PserverStatusRequest()] * self.servers
        self._ask(hello, timeout_s=_HELLO_TIMEOUT_S)
        self._owners = dense_owners({each.name: elements(each) for each in dense}, self.servers)
        parts = [[p for p in dense if self._owners[p.name] == s] for s in range(self.servers)]
        self.layout = [segments(mine) for mine in parts]
        self._has_buffers = [any(p.group == BUFFER_GROUP for p in mine) for mine in parts]
        table_calls = [pb.PushEmbeddingTableInfosRequest(infos=tables) for _ in parts]
        dense_calls = [_described(mine, optimizer, seed) for mine in parts]
        # Servers restore a checkpoint during these calls, which may take long.
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
        """Start a pull of dense parameters and rows.

        Args:
            known: the previous result; servers do not send dense parameters that have not changed.
            read_only: do not create rows for unknown ids, and send rows in float32.
        """
        found = lookups(tables)
        calls = [
            PullCall(
                server, tables, found, dense, known.versions[server] if known else -1, read_only,
                self._answer_bytes(tables, server, dense=dense),
            )
            for server in range(self.servers)
        ]  # fmt: skip

        def combine(answers: list[Answer]) -> PullResult:
            rows = [np.empty((len(t.ids.unique), t.dim), np.float32) for t in tables]
            incarnations = [answer.incarnation for answer in answers]
            received = [answer.received for answer in answers]
            if all(isinstance(each, ReceivedPull) for each in received):
                parts = [each.parts for each in received if isinstance(each, ReceivedPull)]
                read = _core.read_pull(parts, found, rows)
                if read is not None:
                    return PullResult(read[0], incarnations, read[1], rows)
            for index, (table, out) in enumerate(zip(tables, rows, strict=True)):
                for server, answer in enumerate(answers):
                    out[table.ids.part(server)] = answer.floats(answer.message.vectors[index])
            return PullResult(
                versions=[answer.message.version for answer in answers],
                incarnations=incarnations,
                dense=[
                    answer.floats(answer.message.dense) if answer.message.dense.dtype else None
                    for answer in answers
                ],
                rows=rows,
            )

        dtype = tensor_pb2.DT_FLOAT if read_only else self._dtype
        usual = calls if dtype == tensor_pb2.DT_FLOAT else [call.framed(dtype) for call in calls]
        return Pending(self._call_all(usual, known=known.incarnations if known else None), combine)

    def _answer_bytes(self, tables: Sequence[TableIds], server: int, *, dense: bool) -> int:
        """Return an upper bound of the bytes of values in the answer to a pull, with padding."""
        sizes = [4 * table.dim * table.ids.count(server) for table in tables]
        if dense and self.layout[server]:
            last = self.layout[server][-1]
            sizes.append(4 * (last.start + last.size))
        return sum(size + -size % 64 for size in sizes)

    def memory(self, server: int, size: int) -> Floats:
        """Return memory (size,) for the dense gradient of a server, shared with it if possible."""
        return self._connections[server].allocate(4 * size).view(np.float32)

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
        """Start a push of gradients.

        The result is False if the gradient is too old for a server (synchronous mode); the caller
        must pull, compute and push again.

        Args:
            dense: gradient for each server; None if there is no dense update.
            tables: ids and summed gradients (u, dim) of each table. All gradients must not change
                until the answers have arrived.
            records: the records of the gradient; a server applies each range once.
            versions: version of each server's parameters that the gradient was computed with.
            exact: new values of buffers that are not float32, by name.
        """
        ids = [table for table, _ in tables]
        found = lookups(ids)
        gradients = [np.ascontiguousarray(gradient, np.float32) for _, gradient in tables]
        calls: list[PushCall | Framed] = []
        for server in range(self.servers):
            own = dense[server] if dense is not None and self.layout[server] else None
            call = PushCall(
                server, ids, found, own, gradients, records, versions[server], retired_before,
                learning_rates,
            )  # fmt: skip
            exact_here = {n: v for n, v in (exact or {}).items() if self._owners[n] == server}
            if not exact_here and self._dtype == tensor_pb2.DT_FLOAT:
                calls.append(call)
                continue
            buffers = tensor_pb2.DT_FLOAT if self._has_buffers[server] else self._dtype
            framed = call.framed(self._dtype, buffers)
            for name, value in exact_here.items():
                framed.message.exact.add(name=name, value=codec.to_proto(value))
            calls.append(framed)
        futures = self._call_all(calls)
        return Pending(futures, lambda answers: all(a.message.accepted for a in answers))

    def rows(self, table: str, dim: int) -> tuple[Ids, Floats]:
        """Return all existing rows of a table: ids (n,) in any order, and vectors (n, dim)."""
        scans = [_Scan(self._connections[server], table) for server in range(self.servers)]
        while open_ := [scan for scan in scans if scan.cursor >= 0]:
            asked = [scan.start() for scan in open_]
            for scan, answer in zip(open_, Pending(asked, list).wait(), strict=True):
                scan.take(answer)
        ids, vectors = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)]
        for scan in scans:
            ids += [page.array(page.message.ids) for page in scan.pages]
            vectors += [page.array(page.message.vectors) for page in scan.pages]
        return np.concatenate(ids), np.concatenate(vectors)

    def watermarks(self, task_id: int) -> int:
        """Return the number of leading records of the task that every server has applied."""
        calls = [pb.GetWatermarksRequest(task_ids=[task_id]) for _ in range(self.servers)]
        answers = self._ask(calls)
        return min(int(a.message.offsets[0]) for a in answers)

    @property
    def newest(self) -> int:
        """Largest incarnation of the servers that this client knows."""
        return max((each.incarnation for each in self._connections), default=0)

    def follow(self, newest: int) -> None:
        """Connect to servers that the master has started, up to the incarnation ``newest``.

        A call to a server that does not answer is sent to its successor, or fails if the model has
        a new incarnation.
        """
        if self._resolve is None or newest <= self.newest:
            return
        try:
            cluster = self._resolve(0, 0)
        except ServersLostError:  # of the master: calls to servers notice it, too
            return
        if cluster.incarnation != self._model:
            self.close(ServersReplacedError)
        for connection, server in zip(self._connections, cluster.servers, strict=False):
            connection.moved(server)

    def close(self, error: type[ServersLostError] = ServersLostError) -> None:
        """Close the connections; calls in flight raise ``error``."""
        for connection in self._connections:
            connection.close(error)

    def _call_all(
        self,
        calls: Sequence[Any],
        *,
        timeout_s: float = _TIMEOUT_S,
        known: Sequence[int] | None = None,
    ) -> list[Call]:
        """Start one call to each server.

        Args:
            known: incarnations of the servers to whose state the calls refer.
        """
        return [
            connection.call(call, timeout_s=timeout_s, known=incarnation)
            for connection, call, incarnation in zip(
                self._connections, calls, known or [-1] * self.servers, strict=True
            )
        ]

    def _ask(self, calls: Sequence[Any], **how: Any) -> list[Answer]:
        """Make the calls and wait for the answers; see :meth:`Pending.wait`."""
        return Pending(self._call_all(calls, **how), list).wait()


def _described(
    parameters: Sequence[pb.DenseParameter], optimizer: pb.OptimizerConfig, seed: int
) -> Framed:
    """Return the call that tells a server its dense parameters."""
    call = Framed(pb.PushDenseParametersRequest(optimizer=optimizer, seed=seed))
    for given in parameters:
        parameter = call.message.parameters.add(
            name=given.name, group=given.group, aliases=given.aliases
        )
        call.put_large(given.value, parameter.value)
    return call


class _Scan:
    """Reads one table of a shard page by page; starts again if another server takes over."""

    def __init__(self, connection: ShardConnection, table: str) -> None:
        self._connection, self._table = connection, table
        self._incarnation = -1
        self.cursor = 0
        """Position of the next page; -1 after the last page."""
        self.pages: list[Answer] = []

    def start(self) -> Call:
        request = Framed(pb.ReadRowsRequest(name=self._table, cursor=self.cursor))
        return self._connection.call(request, timeout_s=_TIMEOUT_S, known=self._incarnation)

    def take(self, answer: Answer) -> None:
        if answer.incarnation != self._incarnation:
            self._incarnation = answer.incarnation
            self.pages.clear()
        self.pages.append(answer)
        self.cursor = answer.message.cursor
