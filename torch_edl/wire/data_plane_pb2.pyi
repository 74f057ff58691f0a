from torch_edl.wire import pserver_pb2 as _pserver_pb2
from torch_edl.wire import replica_pb2 as _replica_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataRequest(_message.Message):
    __slots__ = ("key", "call", "pull", "push_gradients", "replicate", "put_base", "fetch_replica", "push_dense_parameters", "read_rows", "attach_memory", "shared", "room_at", "room_bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    PUT_BASE_FIELD_NUMBER: _ClassVar[int]
    FETCH_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PUSH_DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    READ_ROWS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    ROOM_AT_FIELD_NUMBER: _ClassVar[int]
    ROOM_BYTES_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    call: int
    pull: _pserver_pb2.PullRequest
    push_gradients: _pserver_pb2.PushGradientsRequest
    replicate: _replica_pb2.ReplicateRequest
    put_base: _replica_pb2.PutBaseRequest
    fetch_replica: _replica_pb2.FetchReplicaRequest
    push_dense_parameters: _pserver_pb2.PushDenseParametersRequest
    read_rows: _pserver_pb2.ReadRowsRequest
    attach_memory: AttachMemoryRequest
    shared: SharedFrames
    room_at: int
    room_bytes: int
    def __init__(self, key: _Optional[bytes] = ..., call: _Optional[int] = ..., pull: _Optional[_Union[_pserver_pb2.PullRequest, _Mapping]] = ..., push_gradients: _Optional[_Union[_pserver_pb2.PushGradientsRequest, _Mapping]] = ..., replicate: _Optional[_Union[_replica_pb2.ReplicateRequest, _Mapping]] = ..., put_base: _Optional[_Union[_replica_pb2.PutBaseRequest, _Mapping]] = ..., fetch_replica: _Optional[_Union[_replica_pb2.FetchReplicaRequest, _Mapping]] = ..., push_dense_parameters: _Optional[_Union[_pserver_pb2.PushDenseParametersRequest, _Mapping]] = ..., read_rows: _Optional[_Union[_pserver_pb2.ReadRowsRequest, _Mapping]] = ..., attach_memory: _Optional[_Union[AttachMemoryRequest, _Mapping]] = ..., shared: _Optional[_Union[SharedFrames, _Mapping]] = ..., room_at: _Optional[int] = ..., room_bytes: _Optional[int] = ...) -> None: ...

class DataAnswer(_message.Message):
    __slots__ = ("call", "code", "details", "pull", "push_gradients", "replicate", "put_base", "fetch_replica", "push_dense_parameters", "read_rows", "attach_memory", "shared")
    CALL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    PUT_BASE_FIELD_NUMBER: _ClassVar[int]
    FETCH_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PUSH_DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    READ_ROWS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_MEMORY_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    call: int
    code: int
    details: str
    pull: _pserver_pb2.PullResponse
    push_gradients: _pserver_pb2.PushGradientsResponse
    replicate: _replica_pb2.ReplicateResponse
    put_base: _replica_pb2.PutBaseResponse
    fetch_replica: _replica_pb2.FetchReplicaResponse
    push_dense_parameters: _pserver_pb2.PushDenseParametersResponse
    read_rows: _pserver_pb2.ReadRowsResponse
    attach_memory: AttachMemoryResponse
    shared: SharedFrames
    def __init__(self, call: _Optional[int] = ..., code: _Optional[int] = ..., details: _Optional[str] = ..., pull: _Optional[_Union[_pserver_pb2.PullResponse, _Mapping]] = ..., push_gradients: _Optional[_Union[_pserver_pb2.PushGradientsResponse, _Mapping]] = ..., replicate: _Optional[_Union[_replica_pb2.ReplicateResponse, _Mapping]] = ..., put_base: _Optional[_Union[_replica_pb2.PutBaseResponse, _Mapping]] = ..., fetch_replica: _Optional[_Union[_replica_pb2.FetchReplicaResponse, _Mapping]] = ..., push_dense_parameters: _Optional[_Union[_pserver_pb2.PushDenseParametersResponse, _Mapping]] = ..., read_rows: _Optional[_Union[_pserver_pb2.ReadRowsResponse, _Mapping]] = ..., attach_memory: _Optional[_Union[AttachMemoryResponse, _Mapping]] = ..., shared: _Optional[_Union[SharedFrames, _Mapping]] = ...) -> None: ...

class SharedFrames(_message.Message):
    __slots__ = ("places", "sizes")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, places: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class AttachMemoryRequest(_message.Message):
    __slots__ = ("pid", "file", "nonce")
    PID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    pid: int
    file: int
    nonce: bytes
    def __init__(self, pid: _Optional[int] = ..., file: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class AttachMemoryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
