from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ring(_message.Message):
    __slots__ = ("number", "workers", "store", "source", "heal", "fresh", "restored_from", "values_only")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    VALUES_ONLY_FIELD_NUMBER: _ClassVar[int]
    number: int
    workers: _containers.RepeatedScalarFieldContainer[int]
    store: str
    source: int
    heal: bool
    fresh: bool
    restored_from: str
    values_only: bool
    def __init__(self, number: _Optional[int] = ..., workers: _Optional[_Iterable[int]] = ..., store: _Optional[str] = ..., source: _Optional[int] = ..., heal: _Optional[bool] = ..., fresh: _Optional[bool] = ..., restored_from: _Optional[str] = ..., values_only: _Optional[bool] = ...) -> None: ...

class JoinRingRequest(_message.Message):
    __slots__ = ("worker_id", "ring", "store", "step", "rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    ring: int
    store: str
    step: int
    rank: int
    def __init__(self, worker_id: _Optional[int] = ..., ring: _Optional[int] = ..., store: _Optional[str] = ..., step: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class JoinRingResponse(_message.Message):
    __slots__ = ("leave", "ring")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    ring: Ring
    def __init__(self, leave: _Optional[bool] = ..., ring: _Optional[_Union[Ring, _Mapping]] = ...) -> None: ...

class StandByRequest(_message.Message):
    __slots__ = ("worker_id", "ring", "store", "step")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    ring: int
    store: str
    step: int
    def __init__(self, worker_id: _Optional[int] = ..., ring: _Optional[int] = ..., store: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class LeaveRingRequest(_message.Message):
    __slots__ = ("worker_id", "finished")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    finished: bool
    def __init__(self, worker_id: _Optional[int] = ..., finished: _Optional[bool] = ...) -> None: ...

class LeaveRingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportCheckpointRequest(_message.Message):
    __slots__ = ("worker_id", "directory")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    directory: str
    def __init__(self, worker_id: _Optional[int] = ..., directory: _Optional[str] = ...) -> None: ...

class ReportCheckpointResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: _Optional[bool] = ...) -> None: ...
