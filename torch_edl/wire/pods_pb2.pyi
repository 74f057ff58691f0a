from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndedWorker(_message.Message):
    __slots__ = ("id", "code", "last_line")
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LAST_LINE_FIELD_NUMBER: _ClassVar[int]
    id: int
    code: int
    last_line: str
    def __init__(self, id: _Optional[int] = ..., code: _Optional[int] = ..., last_line: _Optional[str] = ...) -> None: ...

class PodReportRequest(_message.Message):
    __slots__ = ("pod", "running", "ended", "incarnation")
    POD_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    pod: int
    running: _containers.RepeatedScalarFieldContainer[int]
    ended: _containers.RepeatedCompositeFieldContainer[EndedWorker]
    incarnation: str
    def __init__(self, pod: _Optional[int] = ..., running: _Optional[_Iterable[int]] = ..., ended: _Optional[_Iterable[_Union[EndedWorker, _Mapping]]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class StopWorker(_message.Message):
    __slots__ = ("id", "grace_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    grace_s: float
    def __init__(self, id: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class PodReportResponse(_message.Message):
    __slots__ = ("run", "stop", "leave")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    run: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedCompositeFieldContainer[StopWorker]
    leave: bool
    def __init__(self, run: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[_Union[StopWorker, _Mapping]]] = ..., leave: _Optional[bool] = ...) -> None: ...
