"""All servers of a job as one: a pull and a push are one call to each of them, side by side.

Every call may be repeated: the first initialisation wins, a repeated pull changes nothing, and a
server does not apply the records of a push twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_edl import _core
from torch_edl.ps_client.calls import Pending, Servers
from torch_edl.ps_client.partition import dense_owners
from torch_edl.wire import codec, tensor_pb2
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

BUFFER_GROUP = -2

_HELLO_TIMEOUT_S = 3.0
_RESTORE_TIMEOUT_S = 600.0
_BLOCK_BYTES = 64 << 20  # of rows in one pull


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
class DenseValue:
    """A dense parameter or buffer that servers are to hold."""

    value: Array
    """float32; any type of ``TensorProto`` where the value is not trained."""
    group: int
    """Parameter group; -1: frozen, -2: a buffer."""
    aliases: tuple[str, ...] = ()
    """Its other names in the ``state_dict``."""


@dataclass(frozen=True)
class Segment:
    """The place of a dense parameter in the flat vector of its server."""

    name: str
    shape: tuple[int, ...]
    start: int
    size: int
    group: int


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

    initialized: bool
    version: int
    dense: list[Floats | None]
    """Flat vector of each server; None: not requested, or not changed."""
    versions: list[int]
    rows: list[Floats] = field(default_factory=list)
    """(u, dim) for each table of the request, in the order of its ``unique`` ids."""


@dataclass(frozen=True)
class PushResult:
    """The answer to a push."""

    accepted: bool
    """False: the gradient is too old for a server (sync mode); pull, compute and push again."""
    version: int


class PendingPull(Pending):
    """A pull in flight."""

    def __init__(self, futures: list[Any], tables: Sequence[TableIds]) -> None:
        super().__init__(futures)
        self._tables = tables

    def wait(self) -> PullResult:
        """The answers, combined; raises as :meth:`responses`."""
        answers = self.responses()
        return PullResult(
            initialized=all(a.initialized for a in answers),
            version=max(a.version for a in answers),
            versions=[a.version for a in answers],
            dense=[_flat(a.dense) for a in answers],
            rows=[self._rows(i, t, answers) for i, t in enumerate(self._tables)],
        )

    def _rows(self, index: int, table: TableIds, answers: list[Any]) -> Floats:
        out = np.empty((len(table.ids.unique), table.dim), np.float32)
        for server, answer in enumerate(answers):
            part = codec.from_proto(answer.vectors[index])
            out[table.ids.part(server)] = part
        return out


class PendingPush(Pending):
    """A push in flight."""

    def wait(self) -> PushResult:
        """The answers, combined; raises as :meth:`responses`."""
        answers = self.responses()
        return PushResult(
            accepted=all(a.accepted for a in answers), version=max(a.version for a in answers)
        )


class PsClient:
    """The servers of one cluster, in shard order.

    Args:
        addresses: ``host:port`` of each server.
        incarnation: incarnation of the servers that this client calls.
        timeout_s: deadline of one call, seconds.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        job: str,
        incarnation: int,
        token: str,
        timeout_s: float = 30.0,
    ) -> None:
        self._servers = Servers(addresses, token=token, timeout_s=timeout_s)
        self._fence = pb.Fence(job=job, incarnation=incarnation)
        self.incarnation = incarnation
        self.layout: list[list[Segment]] = [[] for _ in addresses]
        self.exact: dict[str, Array] = {}
        """Values that are not float32 by name, as the servers had them at :meth:`initialize`."""
        self._owners: dict[str, int] = {}

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return len(self._servers)

    def initialize(
        self,
        dense: Mapping[str, DenseValue],
        tables: Sequence[pb.EmbeddingTableInfo],
        optimizer: pb.OptimizerConfig,
        *,
        seed: int,
    ) -> bool:
        """Tells every server what to hold. The values of the first caller stay.

        Args:
            dense: by name.

        Returns:
            Whether all servers took the values of this caller.

        Raises:
            UsageError: the servers hold a model of another layout.
        """
        # A short call first, so that servers that are gone are noticed soon.
        hello = [pb.PserverStatusRequest()] * self.servers
        self._servers.ask("Status", hello, wait=True, timeout_s=_HELLO_TIMEOUT_S)
        self._owners = dense_owners({n: int(d.value.size) for n, d in dense.items()}, self.servers)
        names = [[n for n in sorted(dense) if self._owners[n] == s] for s in range(self.servers)]
        self.layout = [_segments({n: dense[n] for n in mine}) for mine in names]
        infos = pb.PushEmbeddingTableInfosRequest(fence=self._fence, infos=tables)
        dense_calls = [
            pb.PushDenseParametersRequest(
                fence=self._fence,
                optimizer=optimizer,
                seed=seed,
                parameters=[
                    pb.DenseParameter(
                        name=name,
                        value=codec.to_proto(dense[name].value),
                        group=dense[name].group,
                        aliases=dense[name].aliases,
                    )
                    for name in mine
                ],
            )
            for mine in names
        ]
        # On these calls servers restore a checkpoint, which may be large.
        answers = self._servers.ask(
            "PushDenseParameters", dense_calls, timeout_s=_RESTORE_TIMEOUT_S
        )
        self._servers.ask(
            "PushEmbeddingTableInfos", [infos] * self.servers, timeout_s=_RESTORE_TIMEOUT_S
        )
        self.exact = {p.name: codec.from_proto(p.value) for a in answers for p in a.exact}
        return all(a.accepted for a in answers)

    def pull(
        self,
        tables: Sequence[TableIds],
        *,
        dense: bool = True,
        known: Sequence[int] | None = None,
        read_only: bool = False,
    ) -> PendingPull:
        """Starts a pull of dense parameters and rows.

        Args:
            known: for each server, the version of the dense parameters that the caller has.
            read_only: create no rows for unseen ids.
        """
        calls = []
        for server in range(self.servers):
            call = pb.PullRequest(
                fence=self._fence,
                dense=dense,
                dense_version=known[server] if known else -1,
                read_only=read_only,
            )
            seen: dict[int, int] = {}
            for table in tables:
                entry = call.tables.add(name=table.name)
                first = seen.setdefault(id(table.ids), len(call.tables))
                if first < len(call.tables):
                    entry.same_ids_as = first
                else:
                    entry.ids = table.ids.unique[table.ids.part(server)].tobytes()
            calls.append(call)
        return PendingPull(self._servers.start("Pull", calls), tables)

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
    ) -> PendingPush:
        """Starts a push of gradients.

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
                fence=self._fence,
                range=records,
                version=versions[server],
                retired_before=retired_before,
                learning_rates=learning_rates,
            )
            if self.layout[server] and dense is not None:
                _fill(call.dense, dense[server].flat)
                call.without_gradient.extend(dense[server].untouched)
            for name, value in (exact or {}).items():
                if self._owners[name] == server:
                    call.exact.add(name=name, value=codec.to_proto(value))
            seen: dict[int, int] = {}
            for table, gradients in tables:
                entry = call.tables.add(name=table.name)
                first = seen.setdefault(id(table.ids), len(call.tables))
                part = table.ids.part(server)
                if first < len(call.tables):
                    entry.same_ids_as = first
                else:
                    entry.ids = table.ids.unique[part].tobytes()
                _fill(entry.values, gradients[part])
            calls.append(call)
        return PendingPush(self._servers.start("PushGradients", calls))

    def rows(self, table: str, dim: int) -> tuple[Ids, Floats]:
        """All rows of a table that exist: ids (n,) in no order, and vectors (n, dim)."""
        ids, vectors = [np.empty(0, np.int64)], [np.empty((0, dim), np.float32)]
        cursors = [0] * self.servers
        while any(cursor >= 0 for cursor in cursors):
            calls = [
                None
                if cursor < 0
                else pb.ReadRowsRequest(fence=self._fence, name=table, cursor=cursor)
                for cursor in cursors
            ]
            for server, answer in self._servers.ask_some("ReadRows", calls).items():
                cursors[server] = answer.cursor
                ids.append(codec.ids_from_bytes(answer.ids))
                vectors.append(codec.from_proto(answer.vectors))
        return np.concatenate(ids), np.concatenate(vectors)

    def weight(self, table: str, num_embeddings: int, dim: int) -> Floats:
        """The whole table (num_embeddings, dim), rows that do not exist as they would start."""
        whole = np.empty((num_embeddings, dim), np.float32)
        block = max(1, _BLOCK_BYTES // (4 * dim))
        for start in range(0, num_embeddings, block):
            wanted = np.arange(start, min(start + block, num_embeddings))
            ids = PartitionedIds.of(wanted, self.servers)
            pull = self.pull([TableIds(table, dim, ids)], dense=False, read_only=True)
            whole[ids.unique] = pull.wait().rows[0]
        return whole

    def watermarks(self, task_id: int) -> int:
        """Records of the task from its start that every server has applied."""
        call = pb.GetWatermarksRequest(fence=self._fence, task_ids=[task_id])
        answers = self._servers.ask("GetWatermarks", [call] * self.servers, wait=True)
        return min(int(a.offsets[0]) for a in answers)

    def close(self) -> None:
        """Closes the connections; calls in flight fail with ServersLostError."""
        self._servers.close()


def _segments(parameters: Mapping[str, DenseValue]) -> list[Segment]:
    segments, start = [], 0
    for name, dense in parameters.items():
        if dense.value.dtype != np.float32:
            continue
        size = int(dense.value.size)
        segments.append(Segment(name, dense.value.shape, start, size, dense.group))
        start += size
    return segments


def _flat(proto: tensor_pb2.TensorProto) -> Floats | None:
    return codec.from_proto(proto) if proto.dtype else None


def _fill(proto: tensor_pb2.TensorProto, array: Floats) -> None:
    proto.dtype = tensor_pb2.DT_FLOAT
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.tensor_content = array.tobytes()
