from torch_edl.wire import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ring(_message.Message):
    __slots__ = ("number", "workers", "store", "source", "heal", "fresh", "restored_from", "values_only", "report_spans", "skip")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_FIELD_NUMBER: _ClassVar[int]
    VALUES_ONLY_FIELD_NUMBER: _ClassVar[int]
    REPORT_SPANS_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    number: int
    workers: _containers.RepeatedScalarFieldContainer[int]
    store: str
    source: int
    heal: bool
    fresh: bool
    restored_from: str
    values_only: bool
    report_spans: bool
    skip: _containers.RepeatedCompositeFieldContainer[_tasks_pb2.TaskStep]
    def __init__(self, number: _Optional[int] = ..., workers: _Optional[_Iterable[int]] = ..., store: _Optional[str] = ..., source: _Optional[int] = ..., heal: _Optional[bool] = ..., fresh: _Optional[bool] = ..., restored_from: _Optional[str] = ..., values_only: _Optional[bool] = ..., report_spans: _Optional[bool] = ..., skip: _Optional[_Iterable[_Union[_tasks_pb2.TaskStep, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("worker_id", "finished", "training")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    finished: bool
    training: int
    def __init__(self, worker_id: _Optional[int] = ..., finished: _Optional[bool] = ..., training: _Optional[int] = ...) -> None: ...

class LeaveRingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportSpanRequest(_message.Message):
    __slots__ = ("worker_id", "ring", "pass_index", "span")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    PASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    ring: int
    pass_index: int
    span: _tasks_pb2.TaskStep
    def __init__(self, worker_id: _Optional[int] = ..., ring: _Optional[int] = ..., pass_index: _Optional[int] = ..., span: _Optional[_Union[_tasks_pb2.TaskStep, _Mapping]] = ...) -> None: ...

class ReportSpanResponse(_message.Message):
    __slots__ = ("enough",)
    ENOUGH_FIELD_NUMBER: _ClassVar[int]
    enough: bool
    def __init__(self, enough: _Optional[bool] = ...) -> None: ...

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
