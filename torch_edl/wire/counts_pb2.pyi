from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class TableCounts(_message.Message):
    __slots__ = ("name", "rows", "bytes", "evicted", "frequent_ids", "frequent_updates", "updates")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_IDS_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_UPDATES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    evicted: int
    frequent_ids: _containers.RepeatedScalarFieldContainer[int]
    frequent_updates: _containers.RepeatedScalarFieldContainer[int]
    updates: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., evicted: _Optional[int] = ..., frequent_ids: _Optional[_Iterable[int]] = ..., frequent_updates: _Optional[_Iterable[int]] = ..., updates: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("time", "cpu_s", "memory", "machine", "machine_cpus", "machine_cpu_s", "machine_memory", "machine_memory_total", "gpu_memory", "gpu_memory_total", "gpu_utilization")
    TIME_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_CPUS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_CPU_S_FIELD_NUMBER: _ClassVar[int]
    MACHINE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MACHINE_MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPU_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    time: float
    cpu_s: float
    memory: int
    machine: str
    machine_cpus: int
    machine_cpu_s: float
    machine_memory: int
    machine_memory_total: int
    gpu_memory: int
    gpu_memory_total: int
    gpu_utilization: float
    def __init__(self, time: _Optional[float] = ..., cpu_s: _Optional[float] = ..., memory: _Optional[int] = ..., machine: _Optional[str] = ..., machine_cpus: _Optional[int] = ..., machine_cpu_s: _Optional[float] = ..., machine_memory: _Optional[int] = ..., machine_memory_total: _Optional[int] = ..., gpu_memory: _Optional[int] = ..., gpu_memory_total: _Optional[int] = ..., gpu_utilization: _Optional[float] = ...) -> None: ...

class ServerCounts(_message.Message):
    __slots__ = ("pull_s", "push_s", "staleness", "journal_lag_s", "journal_bytes", "tables")
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_LAG_S_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    pull_s: Histogram
    push_s: Histogram
    staleness: Histogram
    journal_lag_s: float
    journal_bytes: int
    tables: _containers.RepeatedCompositeFieldContainer[TableCounts]
    def __init__(self, pull_s: _Optional[_Union[Histogram, _Mapping]] = ..., push_s: _Optional[_Union[Histogram, _Mapping]] = ..., staleness: _Optional[_Union[Histogram, _Mapping]] = ..., journal_lag_s: _Optional[float] = ..., journal_bytes: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableCounts, _Mapping]]] = ...) -> None: ...

class LossCounts(_message.Message):
    __slots__ = ("role", "losses")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    role: str
    losses: int
    def __init__(self, role: _Optional[str] = ..., losses: _Optional[int] = ...) -> None: ...

class Outage(_message.Message):
    __slots__ = ("time", "stalled_s", "since", "event")
    TIME_FIELD_NUMBER: _ClassVar[int]
    STALLED_S_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    time: float
    stalled_s: float
    since: float
    event: int
    def __init__(self, time: _Optional[float] = ..., stalled_s: _Optional[float] = ..., since: _Optional[float] = ..., event: _Optional[int] = ...) -> None: ...
