from torch_edl.wire import counts_pb2 as _counts_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessStatus(_message.Message):
    __slots__ = ("role", "id", "pid", "state", "address", "exit", "log", "died", "node", "problem", "kept", "expendable", "phase", "records", "leases", "idle_s", "lease_s", "waits_s", "seconds", "busy_s", "updates", "rows", "bytes", "counts", "slow", "usage", "machine")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class MachineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    EXPENDABLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    WAITS_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    pid: int
    state: str
    address: str
    exit: str
    log: str
    died: bool
    node: str
    problem: str
    kept: bool
    expendable: bool
    phase: str
    records: int
    leases: int
    idle_s: float
    lease_s: float
    waits_s: float
    seconds: _containers.ScalarMap[str, float]
    busy_s: float
    updates: int
    rows: int
    bytes: int
    counts: _counts_pb2.ServerCounts
    slow: float
    usage: _counts_pb2.Usage
    machine: _containers.ScalarMap[str, float]
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., exit: _Optional[str] = ..., log: _Optional[str] = ..., died: _Optional[bool] = ..., node: _Optional[str] = ..., problem: _Optional[str] = ..., kept: _Optional[bool] = ..., expendable: _Optional[bool] = ..., phase: _Optional[str] = ..., records: _Optional[int] = ..., leases: _Optional[int] = ..., idle_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., waits_s: _Optional[float] = ..., seconds: _Optional[_Mapping[str, float]] = ..., busy_s: _Optional[float] = ..., updates: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., counts: _Optional[_Union[_counts_pb2.ServerCounts, _Mapping]] = ..., slow: _Optional[float] = ..., usage: _Optional[_Union[_counts_pb2.Usage, _Mapping]] = ..., machine: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "time", "level", "text", "kind", "fields")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: float
    level: str
    text: str
    kind: str
    fields: str
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[float] = ..., level: _Optional[str] = ..., text: _Optional[str] = ..., kind: _Optional[str] = ..., fields: _Optional[str] = ...) -> None: ...

class EventCount(_message.Message):
    __slots__ = ("kind", "level", "count")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    level: str
    count: int
    def __init__(self, kind: _Optional[str] = ..., level: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("steps", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEPS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, steps: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class RecordCounts(_message.Message):
    __slots__ = ("done", "total", "begun")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    begun: int
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ..., begun: _Optional[int] = ...) -> None: ...

class TaskStates(_message.Message):
    __slots__ = ("todo", "doing", "done")
    TODO_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    todo: int
    doing: int
    done: int
    def __init__(self, todo: _Optional[int] = ..., doing: _Optional[int] = ..., done: _Optional[int] = ...) -> None: ...

class Rollbacks(_message.Message):
    __slots__ = ("times", "records")
    TIMES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    times: int
    records: int
    def __init__(self, times: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class BestModel(_message.Message):
    __slots__ = ("metric", "value", "steps", "checkpoint")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    metric: str
    value: float
    steps: int
    checkpoint: str
    def __init__(self, metric: _Optional[str] = ..., value: _Optional[float] = ..., steps: _Optional[int] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class HistoryPart(_message.Message):
    __slots__ = ("inode", "offset", "content")
    INODE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    inode: int
    offset: int
    content: bytes
    def __init__(self, inode: _Optional[int] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("events_after", "shown_only", "frequent_ids", "history_after")
    EVENTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    SHOWN_ONLY_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_IDS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_AFTER_FIELD_NUMBER: _ClassVar[int]
    events_after: int
    shown_only: bool
    frequent_ids: bool
    history_after: HistoryPart
    def __init__(self, events_after: _Optional[int] = ..., shown_only: _Optional[bool] = ..., frequent_ids: _Optional[bool] = ..., history_after: _Optional[_Union[HistoryPart, _Mapping]] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("job", "kind", "strategy", "reason", "state", "error", "traceback", "epoch", "epochs", "records", "tasks", "processes", "rates", "steps", "loss", "evaluations", "events", "checkpoint", "damaged", "nan_steps", "wall_s", "workers_wanted", "usage_error", "logged", "rolled_back", "servers_wanted", "best", "history", "losses", "outages", "stalled_s", "last_event", "events_count", "records_early", "updates_lost")
    class RatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LoggedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    NAN_STEPS_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    USAGE_ERROR_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    SERVERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    OUTAGES_FIELD_NUMBER: _ClassVar[int]
    STALLED_S_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    EVENTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_EARLY_FIELD_NUMBER: _ClassVar[int]
    UPDATES_LOST_FIELD_NUMBER: _ClassVar[int]
    job: str
    kind: str
    strategy: str
    reason: str
    state: str
    error: str
    traceback: str
    epoch: int
    epochs: int
    records: RecordCounts
    tasks: TaskStates
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStatus]
    rates: _containers.ScalarMap[str, float]
    steps: int
    loss: float
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationResult]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    checkpoint: str
    damaged: int
    nan_steps: int
    wall_s: float
    workers_wanted: int
    usage_error: bool
    logged: _containers.ScalarMap[str, float]
    rolled_back: Rollbacks
    servers_wanted: int
    best: BestModel
    history: HistoryPart
    losses: _containers.RepeatedCompositeFieldContainer[_counts_pb2.LossCounts]
    outages: _containers.RepeatedCompositeFieldContainer[_counts_pb2.Outage]
    stalled_s: float
    last_event: int
    events_count: _containers.RepeatedCompositeFieldContainer[EventCount]
    records_early: int
    updates_lost: int
    def __init__(self, job: _Optional[str] = ..., kind: _Optional[str] = ..., strategy: _Optional[str] = ..., reason: _Optional[str] = ..., state: _Optional[str] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., records: _Optional[_Union[RecordCounts, _Mapping]] = ..., tasks: _Optional[_Union[TaskStates, _Mapping]] = ..., processes: _Optional[_Iterable[_Union[ProcessStatus, _Mapping]]] = ..., rates: _Optional[_Mapping[str, float]] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., checkpoint: _Optional[str] = ..., damaged: _Optional[int] = ..., nan_steps: _Optional[int] = ..., wall_s: _Optional[float] = ..., workers_wanted: _Optional[int] = ..., usage_error: _Optional[bool] = ..., logged: _Optional[_Mapping[str, float]] = ..., rolled_back: _Optional[_Union[Rollbacks, _Mapping]] = ..., servers_wanted: _Optional[int] = ..., best: _Optional[_Union[BestModel, _Mapping]] = ..., history: _Optional[_Union[HistoryPart, _Mapping]] = ..., losses: _Optional[_Iterable[_Union[_counts_pb2.LossCounts, _Mapping]]] = ..., outages: _Optional[_Iterable[_Union[_counts_pb2.Outage, _Mapping]]] = ..., stalled_s: _Optional[float] = ..., last_event: _Optional[int] = ..., events_count: _Optional[_Iterable[_Union[EventCount, _Mapping]]] = ..., records_early: _Optional[int] = ..., updates_lost: _Optional[int] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("min_workers", "max_workers", "servers")
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    min_workers: int
    max_workers: int
    servers: int
    def __init__(self, min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

class ScaleResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason", "at_once")
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    at_once: bool
    def __init__(self, reason: _Optional[str] = ..., at_once: _Optional[bool] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStacksRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class GetStacksResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStacks]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStacks, _Mapping]]] = ...) -> None: ...

class WorkerStacks(_message.Message):
    __slots__ = ("worker_id", "pid", "told", "stacks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    pid: int
    told: bool
    stacks: str
    def __init__(self, worker_id: _Optional[int] = ..., pid: _Optional[int] = ..., told: _Optional[bool] = ..., stacks: _Optional[str] = ...) -> None: ...

class AddEventsRequest(_message.Message):
    __slots__ = ("source", "events")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    source: str
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, source: _Optional[str] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class AddEventsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
