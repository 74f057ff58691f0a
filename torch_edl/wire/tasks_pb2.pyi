from torch_edl.wire import cluster_pb2 as _cluster_pb2
from torch_edl.wire import metrics_pb2 as _metrics_pb2
from torch_edl.wire import pserver_pb2 as _pserver_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_TRAIN: _ClassVar[TaskKind]
    TASK_EVALUATE: _ClassVar[TaskKind]
    TASK_PREDICT: _ClassVar[TaskKind]
    TASK_SUMMARIZE: _ClassVar[TaskKind]
    TASK_SNAPSHOT: _ClassVar[TaskKind]
    TASK_FIT: _ClassVar[TaskKind]
TASK_TRAIN: TaskKind
TASK_EVALUATE: TaskKind
TASK_PREDICT: TaskKind
TASK_SUMMARIZE: TaskKind
TASK_SNAPSHOT: TaskKind
TASK_FIT: TaskKind

class FirstRecords(_message.Message):
    __slots__ = ("framework", "order", "records")
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    framework: str
    order: float
    records: int
    def __init__(self, framework: _Optional[str] = ..., order: _Optional[float] = ..., records: _Optional[int] = ...) -> None: ...

class LeaseMessage(_message.Message):
    __slots__ = ("lease_id", "kind", "task_id", "shard", "start", "end", "epoch", "offset", "retried", "states", "directory", "shard_records", "shard_size", "shard_mtime_ns", "first", "suspect", "skip")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SHARD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARD_MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    kind: TaskKind
    task_id: int
    shard: str
    start: int
    end: int
    epoch: int
    offset: int
    retried: bool
    states: _containers.RepeatedCompositeFieldContainer[_metrics_pb2.MetricState]
    directory: str
    shard_records: int
    shard_size: int
    shard_mtime_ns: int
    first: FirstRecords
    suspect: bool
    skip: _containers.RepeatedCompositeFieldContainer[TaskStep]
    def __init__(self, lease_id: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., task_id: _Optional[int] = ..., shard: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., retried: _Optional[bool] = ..., states: _Optional[_Iterable[_Union[_metrics_pb2.MetricState, _Mapping]]] = ..., directory: _Optional[str] = ..., shard_records: _Optional[int] = ..., shard_size: _Optional[int] = ..., shard_mtime_ns: _Optional[int] = ..., first: _Optional[_Union[FirstRecords, _Mapping]] = ..., suspect: _Optional[bool] = ..., skip: _Optional[_Iterable[_Union[TaskStep, _Mapping]]] = ...) -> None: ...

class TaskStep(_message.Message):
    __slots__ = ("first", "last", "name")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    name: str
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class LeasedTask(_message.Message):
    __slots__ = ("kind", "task_id", "incarnation")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    kind: TaskKind
    task_id: int
    incarnation: int
    def __init__(self, kind: _Optional[_Union[TaskKind, str]] = ..., task_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("worker_id", "want", "incarnation", "held", "tasks", "ahead", "fit", "epochs")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    want: int
    incarnation: int
    held: _containers.RepeatedScalarFieldContainer[int]
    tasks: _containers.RepeatedCompositeFieldContainer[LeasedTask]
    ahead: int
    fit: bool
    epochs: int
    def __init__(self, worker_id: _Optional[int] = ..., want: _Optional[int] = ..., incarnation: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ..., tasks: _Optional[_Iterable[_Union[LeasedTask, _Mapping]]] = ..., ahead: _Optional[int] = ..., fit: _Optional[bool] = ..., epochs: _Optional[int] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("next", "leases", "retired_before", "cluster")
    class Next(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LEASED: _ClassVar[LeaseResponse.Next]
        WAIT: _ClassVar[LeaseResponse.Next]
        FINISHED: _ClassVar[LeaseResponse.Next]
        DRAIN: _ClassVar[LeaseResponse.Next]
        CLUSTER_CHANGED: _ClassVar[LeaseResponse.Next]
        PASS_OVER: _ClassVar[LeaseResponse.Next]
    LEASED: LeaseResponse.Next
    WAIT: LeaseResponse.Next
    FINISHED: LeaseResponse.Next
    DRAIN: LeaseResponse.Next
    CLUSTER_CHANGED: LeaseResponse.Next
    PASS_OVER: LeaseResponse.Next
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    next: LeaseResponse.Next
    leases: _containers.RepeatedCompositeFieldContainer[LeaseMessage]
    retired_before: int
    cluster: _cluster_pb2.Cluster
    def __init__(self, next: _Optional[_Union[LeaseResponse.Next, str]] = ..., leases: _Optional[_Iterable[_Union[LeaseMessage, _Mapping]]] = ..., retired_before: _Optional[int] = ..., cluster: _Optional[_Union[_cluster_pb2.Cluster, _Mapping]] = ...) -> None: ...

class LeaseSnapshotRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    def __init__(self, worker_id: _Optional[int] = ...) -> None: ...

class LeaseSnapshotResponse(_message.Message):
    __slots__ = ("leave", "lease")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    lease: LeaseMessage
    def __init__(self, leave: _Optional[bool] = ..., lease: _Optional[_Union[LeaseMessage, _Mapping]] = ...) -> None: ...

class BeginTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "first", "task", "step")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    first: FirstRecords
    task: LeasedTask
    step: TaskStep
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., first: _Optional[_Union[FirstRecords, _Mapping]] = ..., task: _Optional[_Union[LeasedTask, _Mapping]] = ..., step: _Optional[_Union[TaskStep, _Mapping]] = ...) -> None: ...

class BeginTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TaskCounts(_message.Message):
    __slots__ = ("records", "steps", "nan_steps", "damaged", "offset")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NAN_STEPS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    records: int
    steps: int
    nan_steps: int
    damaged: int
    offset: int
    def __init__(self, records: _Optional[int] = ..., steps: _Optional[int] = ..., nan_steps: _Optional[int] = ..., damaged: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CompleteTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "counts", "metrics", "values", "snapshot", "statistics", "task")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    counts: TaskCounts
    metrics: _metrics_pb2.Metrics
    values: _metrics_pb2.MetricValues
    snapshot: _pserver_pb2.Snapshot
    statistics: bytes
    task: LeasedTask
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., metrics: _Optional[_Union[_metrics_pb2.Metrics, _Mapping]] = ..., values: _Optional[_Union[_metrics_pb2.MetricValues, _Mapping]] = ..., snapshot: _Optional[_Union[_pserver_pb2.Snapshot, _Mapping]] = ..., statistics: _Optional[bytes] = ..., task: _Optional[_Union[LeasedTask, _Mapping]] = ...) -> None: ...

class CompleteTaskResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...

class ReleaseTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "counts", "task")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    counts: TaskCounts
    task: LeasedTask
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., task: _Optional[_Union[LeasedTask, _Mapping]] = ...) -> None: ...

class ReleaseTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "counts", "error", "traceback", "fatal", "task", "untried")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    UNTRIED_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    counts: TaskCounts
    error: str
    traceback: str
    fatal: bool
    task: LeasedTask
    untried: bool
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., fatal: _Optional[bool] = ..., task: _Optional[_Union[LeasedTask, _Mapping]] = ..., untried: _Optional[bool] = ...) -> None: ...

class FailTaskResponse(_message.Message):
    __slots__ = ("over",)
    OVER_FIELD_NUMBER: _ClassVar[int]
    over: bool
    def __init__(self, over: _Optional[bool] = ...) -> None: ...
