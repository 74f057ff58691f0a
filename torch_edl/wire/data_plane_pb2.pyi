from torch_edl.wire import pserver_pb2 as _pserver_pb2
from torch_edl.wire import replica_pb2 as _replica_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataRequest(_message.Message):
    __slots__ = ("key", "call", "pull", "push_gradients", "replicate", "put_base", "fetch_replica", "push_dense_parameters", "read_rows")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    REPLICATE_FIELD_NUMBER: _ClassVar[int]
    PUT_BASE_FIELD_NUMBER: _ClassVar[int]
    FETCH_REPLICA_FIELD_NUMBER: _ClassVar[int]
    PUSH_DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    READ_ROWS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    call: int
    pull: _pserver_pb2.PullRequest
    push_gradients: _pserver_pb2.PushGradientsRequest
    replicate: _replica_pb2.ReplicateRequest
    put_base: _replica_pb2.PutBaseRequest
    fetch_replica: _replica_pb2.FetchReplicaRequest
    push_dense_parameters: _pserver_pb2.PushDenseParametersRequest
    read_rows: _pserver_pb2.ReadRowsRequest
    def __init__(self, key: _Optional[bytes] = ..., call: _Optional[int] = ..., pull: _Optional[_Union[_pserver_pb2.PullRequest, _Mapping]] = ..., push_gradients: _Optional[_Union[_pserver_pb2.PushGradientsRequest, _Mapping]] = ..., replicate: _Optional[_Union[_replica_pb2.ReplicateRequest, _Mapping]] = ..., put_base: _Optional[_Union[_replica_pb2.PutBaseRequest, _Mapping]] = ..., fetch_replica: _Optional[_Union[_replica_pb2.FetchReplicaRequest, _Mapping]] = ..., push_dense_parameters: _Optional[_Union[_pserver_pb2.PushDenseParametersRequest, _Mapping]] = ..., read_rows: _Optional[_Union[_pserver_pb2.ReadRowsRequest, _Mapping]] = ...) -> None: ...

class DataAnswer(_message.Message):
    __slots__ = ("call", "code", "details", "pull", "push_gradients", "replicate", "put_base", "fetch_replica", "push_dense_parameters", "read_rows")
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
    def __init__(self, call: _Optional[int] = ..., code: _Optional[int] = ..., details: _Optional[str] = ..., pull: _Optional[_Union[_pserver_pb2.PullResponse, _Mapping]] = ..., push_gradients: _Optional[_Union[_pserver_pb2.PushGradientsResponse, _Mapping]] = ..., replicate: _Optional[_Union[_replica_pb2.ReplicateResponse, _Mapping]] = ..., put_base: _Optional[_Union[_replica_pb2.PutBaseResponse, _Mapping]] = ..., fetch_replica: _Optional[_Union[_replica_pb2.FetchReplicaResponse, _Mapping]] = ..., push_dense_parameters: _Optional[_Union[_pserver_pb2.PushDenseParametersResponse, _Mapping]] = ..., read_rows: _Optional[_Union[_pserver_pb2.ReadRowsResponse, _Mapping]] = ...) -> None: ...
