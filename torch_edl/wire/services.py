"""The gRPC services. Each is a tuple, so that a stub or a server may use the sum of several."""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from torch_edl.wire import (
    cluster_pb2,
    control_pb2,
    meetings_pb2,
    nodes_pb2,
    pserver_pb2,
    replica_pb2,
    rings_pb2,
    rounds_pb2,
    tasks_pb2,
    workers_pb2,
)

Services = tuple[ServiceDescriptor, ...]


def _of(file: FileDescriptor) -> Services:
    return tuple(file.services_by_name.values())


PSERVER = _of(pserver_pb2.DESCRIPTOR)
REPLICAS = _of(replica_pb2.DESCRIPTOR)
"""Service of a parameter server, on the same port, with ``--durability replica``."""
SERVERS = _of(cluster_pb2.DESCRIPTOR)
WORKERS = _of(workers_pb2.DESCRIPTOR)
TASKS = _of(tasks_pb2.DESCRIPTOR)
RINGS = _of(rings_pb2.DESCRIPTOR)
MEETINGS = _of(meetings_pb2.DESCRIPTOR)
ROUNDS = _of(rounds_pb2.DESCRIPTOR)
NODES = _of(nodes_pb2.DESCRIPTOR)
CONTROL = _of(control_pb2.DESCRIPTOR)
MASTER = SERVERS + WORKERS + TASKS + RINGS + MEETINGS + ROUNDS + NODES + CONTROL
"""All services of the master of a job, on one port."""


def methods(services: Services) -> dict[str, MethodDescriptor]:
    """Return all methods by name; method names are unique over all services."""
    return {method.name: method for service in services for method in service.methods}


_ALL = MASTER + PSERVER + REPLICAS
_METHODS: dict[type[Message], MethodDescriptor] = {
    GetMessageClass(method.input_type): method for method in methods(_ALL).values()
}
assert len(_METHODS) == len(methods(_ALL)), "two methods take the same request"


def method_of(request: Message) -> MethodDescriptor:
    """Return the method that takes the request; each method has its own request type."""
    return _METHODS[type(request)]
