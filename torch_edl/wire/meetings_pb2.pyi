from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginPassRequest(_message.Message):
    __slots__ = ("worker_id", "number", "epochs")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    number: int
    epochs: int
    def __init__(self, worker_id: _Optional[int] = ..., number: _Optional[int] = ..., epochs: _Optional[int] = ...) -> None: ...

class BeginPassResponse(_message.Message):
    __slots__ = ("leave", "begun", "over")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    begun: bool
    over: bool
    def __init__(self, leave: _Optional[bool] = ..., begun: _Optional[bool] = ..., over: _Optional[bool] = ...) -> None: ...

class MeetRequest(_message.Message):
    __slots__ = ("worker_id", "passes", "number", "round", "part", "result")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    passes: int
    number: int
    round: int
    part: bytes
    result: str
    def __init__(self, worker_id: _Optional[int] = ..., passes: _Optional[int] = ..., number: _Optional[int] = ..., round: _Optional[int] = ..., part: _Optional[bytes] = ..., result: _Optional[str] = ...) -> None: ...

class MeetResponse(_message.Message):
    __slots__ = ("leave", "part", "parts", "result")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    part: MeetingPart
    parts: MeetingParts
    result: str
    def __init__(self, leave: _Optional[bool] = ..., part: _Optional[_Union[MeetingPart, _Mapping]] = ..., parts: _Optional[_Union[MeetingParts, _Mapping]] = ..., result: _Optional[str] = ...) -> None: ...

class MeetingPart(_message.Message):
    __slots__ = ("round", "rank", "world")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    round: int
    rank: int
    world: int
    def __init__(self, round: _Optional[int] = ..., rank: _Optional[int] = ..., world: _Optional[int] = ...) -> None: ...

class MeetingParts(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, parts: _Optional[_Iterable[bytes]] = ...) -> None: ...
