from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterServerRequest(_message.Message):
    __slots__ = ("shard", "incarnation", "address")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    incarnation: int
    address: str
    def __init__(self, shard: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class RegisterServerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("incarnation", "servers", "restored_from", "values_only")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    VALUES_ONLY_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    servers: _containers.RepeatedScalarFieldContainer[str]
    restored_from: str
    values_only: bool
    def __init__(self, incarnation: _Optional[int] = ..., servers: _Optional[_Iterable[str]] = ..., restored_from: _Optional[str] = ..., values_only: _Optional[bool] = ...) -> None: ...
