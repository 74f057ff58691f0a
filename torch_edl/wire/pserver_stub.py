"""Calls to one parameter server, over its data plane or over gRPC."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from torch_edl.wire import cluster_pb2, replica_pb2
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.channel import Stub
from torch_edl.wire.data_plane import is_reachable
from torch_edl.wire.data_stub import DataCall, DataStub
from torch_edl.wire.framed import Framed
from torch_edl.wire.services import Services

_BULK = (replica_pb2.PutBaseRequest, replica_pb2.FetchReplicaRequest)


class PserverStub:
    """Sends requests with frames over the data plane, and all others over gRPC.

    If the data plane is not reachable, gRPC is used for all requests.

    Args:
        services: see :class:`~torch_edl.wire.channel.Stub`.
        token: token of the job.
    """

    def __init__(self, services: Services, server: cluster_pb2.Server, token: str) -> None:
        self.address = server.address
        # Without retries of gRPC, which would slow every call.
        self._stub = Stub(services, server.address, token, retries=False)
        has_plane = server.data_plane and is_reachable(server.data_plane)
        self._data = DataStub(server.data_plane, token) if has_plane else None
        # A separate connection, so that no other call waits behind a bulk transfer.
        self._bulk = DataStub(server.data_plane, token) if has_plane else None

    def call(self, request: Message | Framed, *, timeout_s: float) -> Framed:
        """Call the server and wait for the answer.

        Raises:
            grpc.RpcError: the call failed; see ``code()`` and ``details()``.
            UsageError: the request exceeds the size limit.
            ValueError: the stub was closed.
        """
        data = self._data
        if isinstance(request, Framed) and type(request.message) in _BULK:
            data = self._bulk
        if isinstance(request, Framed) and data is not None:
            return data.call(request, timeout_s=timeout_s)
        return Framed(self._call(request, timeout_s))

    def start(self, request: Message | Framed, *, timeout_s: float) -> DataCall | None:
        """Send a call over the data plane; None if the request must go over gRPC.

        Raises:
            UsageError: the request exceeds the size limit.
        """
        if self._data is None or not isinstance(request, Framed):
            return None
        return self._data.start(request, timeout_s=timeout_s)

    def _call(self, request: Message | Framed, timeout_s: float) -> Any:
        if not isinstance(request, Framed):
            return self._stub.call(request, timeout_s=timeout_s)
        if isinstance(request.message, pb.PushGradientsRequest):
            encoded = request.encoded()
            return self._stub.call(request.message, timeout_s=timeout_s, encoded=encoded)
        return self._stub.call(request.whole(), timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connections; calls in flight end with ``CANCELLED``."""
        self._stub.close()
        for data in (self._data, self._bulk):
            if data is not None:
                data.close()
