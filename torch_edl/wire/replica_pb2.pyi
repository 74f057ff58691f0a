from torch_edl.wire import pserver_pb2 as _pserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaOwner(_message.Message):
    __slots__ = ("shard", "shards", "model", "incarnation")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    shard: int
    shards: int
    model: int
    incarnation: int
    def __init__(self, shard: _Optional[int] = ..., shards: _Optional[int] = ..., model: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("fence", "owner", "begin")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    fence: _pserver_pb2.Fence
    owner: ReplicaOwner
    begin: bool
    def __init__(self, fence: _Optional[_Union[_pserver_pb2.Fence, _Mapping]] = ..., owner: _Optional[_Union[ReplicaOwner, _Mapping]] = ..., begin: _Optional[bool] = ...) -> None: ...

class ReplicateResponse(_message.Message):
    __slots__ = ("complete", "last")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    last: int
    def __init__(self, complete: _Optional[bool] = ..., last: _Optional[int] = ...) -> None: ...

class PutBaseRequest(_message.Message):
    __slots__ = ("fence", "owner", "sequence", "file", "offset", "files")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    fence: _pserver_pb2.Fence
    owner: ReplicaOwner
    sequence: int
    file: str
    offset: int
    files: _containers.ScalarMap[str, int]
    def __init__(self, fence: _Optional[_Union[_pserver_pb2.Fence, _Mapping]] = ..., owner: _Optional[_Union[ReplicaOwner, _Mapping]] = ..., sequence: _Optional[int] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., files: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PutBaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeReplicaRequest(_message.Message):
    __slots__ = ("fence", "owner")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    fence: _pserver_pb2.Fence
    owner: ReplicaOwner
    def __init__(self, fence: _Optional[_Union[_pserver_pb2.Fence, _Mapping]] = ..., owner: _Optional[_Union[ReplicaOwner, _Mapping]] = ...) -> None: ...

class TakeReplicaResponse(_message.Message):
    __slots__ = ("complete", "sequence", "files", "last")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    sequence: int
    files: _containers.ScalarMap[str, int]
    last: int
    def __init__(self, complete: _Optional[bool] = ..., sequence: _Optional[int] = ..., files: _Optional[_Mapping[str, int]] = ..., last: _Optional[int] = ...) -> None: ...

class FetchReplicaRequest(_message.Message):
    __slots__ = ("fence", "owner", "file", "offset", "after")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    fence: _pserver_pb2.Fence
    owner: ReplicaOwner
    file: str
    offset: int
    after: int
    def __init__(self, fence: _Optional[_Union[_pserver_pb2.Fence, _Mapping]] = ..., owner: _Optional[_Union[ReplicaOwner, _Mapping]] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class FetchReplicaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
