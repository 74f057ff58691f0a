"""All servers of a job as one: a pull and a push are one call to each of them, side by side.

A row belongs to a server by the hash of its id (``_core.owner``), a dense parameter by its size.
Every call may be repeated: the first initialisation wins, a repeated pull changes nothing, and a
server does not apply the records of a push twice. Arrays in, arrays out: nothing here knows a
module or a task, or imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.errors import EdlError, ServersLostError, UsageError
from torch_edl.wire import cluster_pb2, codec, services, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.channel import Stub

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
T = TypeVar("T")

BUFFER_GROUP = -2

_TIMEOUT_S = 30.0  # of a call
_HELLO_TIMEOUT_S = 3.0
_RESTORE_TIMEOUT_S = 600.0


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


@dataclass
class PullResult:
    """What the servers answered; the values of one server are of one moment."""

    versions: list[int]
    """Version of each server."""
    dense: list[Floats | None]
    """Flat vector of each server; None: not requested, or not changed."""
    rows: list[Floats]
    """(u, dim) for each table of the request, in the order of its ``unique`` ids."""


class Pending(Generic[T]):
    """Calls in flight to all servers, and how their answers are combined."""

    def __init__(self, futures: list[Any], combine: Callable[[list[Any]], T]) -> None:
        self._futures = futures
        self._combine = combine

    def done(self) -> bool:
        """Whether every server has answered."""
        return all(f.done() for f in self._futures)

    def wait(self) -> T:
        """What the answers say together.

        Raises:
            ServersLostError: a server is unreachable, or of another incarnation.
            UsageError: a server rejected the content; the message says why.
        """
        try:
            return self._combine([f.result() for f in self._futures])
        except grpc.RpcError as error:
            raise _translate(error) from None
        except CancelledError:
            raise ServersLostError("the connection was closed") from None


class PsClient:
    """The servers of one cluster, in shard order."""

    def __init__(self, servers: Sequence[cluster_pb2.Server], *, job: str, token: str) -> None:
        # No retries: they would slow every call, and a task whose call failed is trained again.
        self._stubs = [
            Stub(services.PSERVER, server.address, token, retries=False) for server in servers
        ]
        self._fences = [pb.Fence(job=job, incarnation=server.incarnation) for server in servers]
        self.layout: list[list[Segment]] = [[] for _ in servers]
        self.exact: dict[str, Array] = {}
        """Values that are not float32 by name, as the servers had them at :meth:`initialize`."""
        self._owners: dict[str, int] = {}

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return len(self._stubs)

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
        self._ask(hello, wait=True, timeout_s=_HELLO_TIMEOUT_S)
        self._owners = dense_owners({each.name: elements(each) for each in dense}, self.servers)
        parts = [[p for p in dense if self._owners[p.name] == s] for s in range(self.servers)]
        self.layout = [segments(mine) for mine in parts]
        table_calls = [pb.PushEmbeddingTableInfosRequest(infos=tables) for _ in parts]
        dense_calls = [
            pb.PushDenseParametersRequest(optimizer=optimizer, seed=seed, parameters=mine)
            for mine in parts
        ]
        # On these calls servers restore a checkpoint, which may be large.
        answers = self._ask(dense_calls, timeout_s=_RESTORE_TIMEOUT_S)
        self._ask(table_calls, timeout_s=_RESTORE_TIMEOUT_S)
        self.exact = {p.name: codec.from_proto(p.value) for a in answers for p in a.exact}

    def pull(
        self,
        tables: Sequence[TableIds],
        *,
        dense: bool = True,
        known: Sequence[int] | None = None,
        read_only: bool = False,
    ) -> Pending[PullResult]:
        """Starts a pull of dense parameters and rows.

        Args:
            known: for each server, the version of the dense parameters that the caller has.
            read_only: create no rows for unseen ids.
        """
        calls = []
        for server in range(self.servers):
            call = pb.PullRequest(
                dense=dense,
                dense_version=known[server] if known else -1,
                read_only=read_only,
            )
            _add_tables(call.tables, tables, server)
            calls.append(call)

        def combine(answers: list[Any]) -> PullResult:
            return PullResult(
                versions=[a.version for a in answers],
                dense=[codec.from_proto(a.dense) if a.dense.dtype else None for a in answers],
                rows=[
                    _rows(table, [a.vectors[index] for a in answers])
                    for index, table in enumerate(tables)
                ],
            )

        return Pending(self._start(calls), combine)

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
            tables: for each table its ids and their summed gradients (u, dim).
            records: where the gradient comes from; a server applies each range once.
            versions: of the parameters of each server that it was computed with.
            exact: new values of what is not float32, by name.
        """
        calls = []
        for server in range(self.servers):
            call = pb.PushGradientsRequest(
                range=records,
                version=versions[server],
                retired_before=retired_before,
                learning_rates=learning_rates,
            )
            if self.layout[server] and dense is not None:
                codec.fill(call.dense, dense[server].flat)
                call.without_gradient.extend(dense[server].untouched)
            for name, value in (exact or {}).items():
                if self._owners[name] == server:
                    call.exact.add(name=name, value=codec.to_proto(value))
            _add_tables(call.tables, [table for table, _ in tables], server)
            for entry, (table, gradients) in zip(call.tables, tables, strict=True):
                codec.fill(entry.values, gradients[table.ids.part(server)])
            calls.append(call)
        futures = self._start(calls)
        return Pending(futures, lambda answers: all(a.accepted for a in answers))

    def rows(self, table: str, dim: int) -> tuple[Ids, Floats]:
        """All rows of a table that exist: ids (n,) in no order, and vectors (n, dim)."""
        ids, vectors = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)]
        cursors = [0] * self.servers
        while asked := [server for server, cursor in enumerate(cursors) if cursor >= 0]:
            calls = [
                pb.ReadRowsRequest(name=table, cursor=cursor) if cursor >= 0 else None
                for cursor in cursors
            ]
            for server, answer in zip(asked, self._ask(calls), strict=True):
                cursors[server] = answer.cursor
                ids.append(codec.ids_from_bytes(answer.ids))
                vectors.append(codec.from_proto(answer.vectors))
        return np.concatenate(ids), np.concatenate(vectors)

    def watermarks(self, task_id: int) -> int:
        """Records of the task from its start that every server has applied."""
        calls = [pb.GetWatermarksRequest(task_ids=[task_id]) for _ in range(self.servers)]
        answers = self._ask(calls, wait=True)
        return min(int(a.offsets[0]) for a in answers)

    def close(self) -> None:
        """Closes the connections; calls in flight fail with ServersLostError."""
        for stub in self._stubs:
            stub.close()

    def _start(
        self,
        calls: Sequence[Any],
        *,
        wait: bool = False,
        timeout_s: float = _TIMEOUT_S,
    ) -> list[Any]:
        """Starts one call to each server, behind its fence, and returns the futures. A call of None
        is left out.

        Args:
            wait: wait for a connection instead of failing at once without one.
        """
        futures = []
        for stub, fence, call in zip(self._stubs, self._fences, calls, strict=True):
            if call is None:
                continue
            if call.DESCRIPTOR.fields_by_name.get("fence") is not None:  # all calls but Status
                call.fence.CopyFrom(fence)
            futures.append(stub.start(call, timeout_s=timeout_s, wait=wait))
        return futures

    def _ask(self, calls: Sequence[Any], **how: Any) -> list[Any]:
        """As :meth:`_start`, and waits for the answers; raises as :meth:`Pending.wait`."""
        return Pending(self._start(calls, **how), list).wait()


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


def _add_tables(entries: Any, tables: Sequence[TableIds], server: int) -> None:
    """Adds to a call the ids of each table that ``server`` owns."""
    seen: dict[int, int] = {}
    for number, table in enumerate(tables, start=1):
        entry = entries.add(name=table.name)
        first = seen.setdefault(id(table.ids), number)
        if first < number:
            entry.same_ids_as = first
        else:
            entry.ids = table.ids.unique[table.ids.part(server)].tobytes()


def _rows(table: TableIds, parts: Sequence[tensor_pb2.TensorProto]) -> Floats:
    """Rows (u, dim) of a table, of which each server sent those that it owns."""
    out = np.empty((len(table.ids.unique), table.dim), np.float32)
    for server, part in enumerate(parts):
        out[table.ids.part(server)] = codec.from_proto(part)
    return out


def _translate(error: grpc.RpcError) -> Exception:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return UsageError(details)
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    ):
        return ServersLostError(f"{code.name}: {details}")
    return EdlError(f"parameter server: {code.name}: {details}")
