from torch_edl.wire import pserver_pb2 as _pserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ShardState(_message.Message):
    __slots__ = ("dense", "tables", "version", "applied", "received", "waiting", "restored", "files", "lost")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    dense: _pserver_pb2.PushDenseParametersRequest
    tables: _containers.RepeatedCompositeFieldContainer[SavedTable]
    version: int
    applied: _pserver_pb2.Watermarks
    received: _pserver_pb2.Watermarks
    waiting: _containers.RepeatedScalarFieldContainer[bytes]
    restored: bool
    files: _containers.ScalarMap[str, int]
    lost: int
    def __init__(self, dense: _Optional[_Union[_pserver_pb2.PushDenseParametersRequest, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[SavedTable, _Mapping]]] = ..., version: _Optional[int] = ..., applied: _Optional[_Union[_pserver_pb2.Watermarks, _Mapping]] = ..., received: _Optional[_Union[_pserver_pb2.Watermarks, _Mapping]] = ..., waiting: _Optional[_Iterable[bytes]] = ..., restored: _Optional[bool] = ..., files: _Optional[_Mapping[str, int]] = ..., lost: _Optional[int] = ...) -> None: ...

class LostRecords(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    def __init__(self, records: _Optional[int] = ...) -> None: ...

class SavedTable(_message.Message):
    __slots__ = ("info", "declared", "seed", "step")
    INFO_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    info: _pserver_pb2.EmbeddingTableInfo
    declared: _pserver_pb2.EmbeddingTableInfo
    seed: int
    step: int
    def __init__(self, info: _Optional[_Union[_pserver_pb2.EmbeddingTableInfo, _Mapping]] = ..., declared: _Optional[_Union[_pserver_pb2.EmbeddingTableInfo, _Mapping]] = ..., seed: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...
