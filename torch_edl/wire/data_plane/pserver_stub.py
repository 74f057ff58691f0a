"""All calls to one parameter server, over the data plane and gRPC."""

from __future__ import annotations

from google.protobuf.message import Message

from torch_edl.wire import cluster_pb2, replica_pb2
from torch_edl.wire.channel import Stub
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.shared_memory import Bytes
from torch_edl.wire.data_plane.stub import CompiledRequest, DataCall, DataStub
from torch_edl.wire.services import Services

_BULK = (replica_pb2.PutBaseRequest, replica_pb2.FetchReplicaRequest)


class PserverStub:
    """Sends requests with frames over the data plane, and messages over gRPC.

    Args:
        services: see :class:`~torch_edl.wire.channel.Stub`.
        token: token of the job.
    """

    def __init__(self, services: Services, server: cluster_pb2.Server, token: str) -> None:
        self.address = server.address
        # Without retries of gRPC, which would slow every call.
        self._stub = Stub(services, server.address, token, retries=False)
        self._data = DataStub(server.data_plane, token)
        # A separate connection, so that no other call waits behind a bulk transfer.
        self._bulk = DataStub(server.data_plane, token)

    def call(self, request: Message | Framed, *, timeout_s: float) -> Framed:
        """Call the server and wait for the answer.

        Raises:
            grpc.RpcError: the call failed; see ``code()`` and ``details()``.
            UsageError: the request exceeds the size limit.
            ValueError: the stub was closed.
        """
        if isinstance(request, Framed):
            data = self._bulk if isinstance(request.message, _BULK) else self._data
            return data.call(request, timeout_s=timeout_s)
        return Framed(self._stub.call(request, timeout_s=timeout_s))

    def start(self, request: Framed | CompiledRequest, *, timeout_s: float) -> DataCall:
        """Send a call over the data plane.

        Raises:
            UsageError: the request exceeds the size limit.
        """
        return self._data.start(request, timeout_s=timeout_s)

    def allocate(self, size: int) -> Bytes:
        """Return memory (size,) for a frame of a push; see :meth:`DataStub.allocate`."""
        return self._data.allocate(size)

    def close(self) -> None:
        """Close the connections; calls in flight end with ``CANCELLED``."""
        for each in (self._stub, self._data, self._bulk):
            each.close()
