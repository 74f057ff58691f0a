from torch_edl.wire import counts_pb2 as _counts_pb2
from torch_edl.wire import pserver_pb2 as _pserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterServerRequest(_message.Message):
    __slots__ = ("shard", "incarnation", "address", "lost", "updates_lost", "damage", "data_plane", "watermarks")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    UPDATES_LOST_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    DATA_PLANE_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    incarnation: int
    address: str
    lost: str
    updates_lost: int
    damage: str
    data_plane: str
    watermarks: _pserver_pb2.Watermarks
    def __init__(self, shard: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., lost: _Optional[str] = ..., updates_lost: _Optional[int] = ..., damage: _Optional[str] = ..., data_plane: _Optional[str] = ..., watermarks: _Optional[_Union[_pserver_pb2.Watermarks, _Mapping]] = ...) -> None: ...

class RegisterServerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Server(_message.Message):
    __slots__ = ("address", "incarnation", "data_plane")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATA_PLANE_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: int
    data_plane: str
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[int] = ..., data_plane: _Optional[str] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("incarnation", "servers", "restored_from", "values_only")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    VALUES_ONLY_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    servers: _containers.RepeatedCompositeFieldContainer[Server]
    restored_from: str
    values_only: bool
    def __init__(self, incarnation: _Optional[int] = ..., servers: _Optional[_Iterable[_Union[Server, _Mapping]]] = ..., restored_from: _Optional[str] = ..., values_only: _Optional[bool] = ...) -> None: ...

class ServerHeartbeatRequest(_message.Message):
    __slots__ = ("shard", "incarnation", "version", "problem", "leaving", "notice", "machine", "keeper", "note", "has_copy", "rows", "bytes", "counts", "usage")
    class MachineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    KEEPER_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    HAS_COPY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    shard: int
    incarnation: int
    version: int
    problem: str
    leaving: bool
    notice: str
    machine: _containers.ScalarMap[str, float]
    keeper: int
    note: int
    has_copy: bool
    rows: int
    bytes: int
    counts: _counts_pb2.ServerCounts
    usage: _counts_pb2.Usage
    def __init__(self, shard: _Optional[int] = ..., incarnation: _Optional[int] = ..., version: _Optional[int] = ..., problem: _Optional[str] = ..., leaving: _Optional[bool] = ..., notice: _Optional[str] = ..., machine: _Optional[_Mapping[str, float]] = ..., keeper: _Optional[int] = ..., note: _Optional[int] = ..., has_copy: _Optional[bool] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., counts: _Optional[_Union[_counts_pb2.ServerCounts, _Mapping]] = ..., usage: _Optional[_Union[_counts_pb2.Usage, _Mapping]] = ...) -> None: ...

class ServerHeartbeatResponse(_message.Message):
    __slots__ = ("known", "stay", "noted", "tell_machine", "tell_frequent_ids", "peer")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    STAY_FIELD_NUMBER: _ClassVar[int]
    NOTED_FIELD_NUMBER: _ClassVar[int]
    TELL_MACHINE_FIELD_NUMBER: _ClassVar[int]
    TELL_FREQUENT_IDS_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    known: bool
    stay: bool
    noted: int
    tell_machine: bool
    tell_frequent_ids: bool
    peer: Server
    def __init__(self, known: _Optional[bool] = ..., stay: _Optional[bool] = ..., noted: _Optional[int] = ..., tell_machine: _Optional[bool] = ..., tell_frequent_ids: _Optional[bool] = ..., peer: _Optional[_Union[Server, _Mapping]] = ...) -> None: ...

class GetClusterRequest(_message.Message):
    __slots__ = ("shard", "after")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    after: int
    def __init__(self, shard: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class GetClusterResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: Cluster
    def __init__(self, cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...
