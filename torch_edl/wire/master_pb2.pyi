from torch_edl.wire import pserver_pb2 as _pserver_pb2
from torch_edl.wire import tensor_pb2 as _tensor_pb2
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
TASK_TRAIN: TaskKind
TASK_EVALUATE: TaskKind
TASK_PREDICT: TaskKind
TASK_SUMMARIZE: TaskKind
TASK_SNAPSHOT: TaskKind

class RegisterRequest(_message.Message):
    __slots__ = ("worker_id", "pid", "host", "node", "local_rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    pid: int
    host: str
    node: str
    local_rank: int
    def __init__(self, worker_id: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., node: _Optional[str] = ..., local_rank: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("config_json", "worker_id", "ring")
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    config_json: str
    worker_id: int
    ring: int
    def __init__(self, config_json: _Optional[str] = ..., worker_id: _Optional[int] = ..., ring: _Optional[int] = ...) -> None: ...

class RegisterServerRequest(_message.Message):
    __slots__ = ("shard", "incarnation", "address", "pid")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    incarnation: int
    address: str
    pid: int
    def __init__(self, shard: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class RegisterServerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EmbeddingReport(_message.Message):
    __slots__ = ("name", "num_embeddings", "dim", "dynamic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_embeddings: int
    dim: int
    dynamic: bool
    def __init__(self, name: _Optional[str] = ..., num_embeddings: _Optional[int] = ..., dim: _Optional[int] = ..., dynamic: _Optional[bool] = ...) -> None: ...

class SourceShard(_message.Message):
    __slots__ = ("name", "records", "size", "mtime_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: int
    size: int
    mtime_ns: int
    def __init__(self, name: _Optional[str] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., mtime_ns: _Optional[int] = ...) -> None: ...

class ScriptData(_message.Message):
    __slots__ = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    records: int
    epochs: int
    batch_size: int
    records_per_task: int
    shuffle: bool
    seed: int
    files: str
    def __init__(self, records: _Optional[int] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., records_per_task: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., files: _Optional[str] = ...) -> None: ...

class ReportModelRequest(_message.Message):
    __slots__ = ("embeddings", "dense_elements", "optimizer", "optimizer_error", "shards", "custom_source")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DENSE_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_ERROR_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_SOURCE_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[EmbeddingReport]
    dense_elements: int
    optimizer: str
    optimizer_error: str
    shards: _containers.RepeatedCompositeFieldContainer[SourceShard]
    custom_source: bool
    def __init__(self, embeddings: _Optional[_Iterable[_Union[EmbeddingReport, _Mapping]]] = ..., dense_elements: _Optional[int] = ..., optimizer: _Optional[str] = ..., optimizer_error: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[SourceShard, _Mapping]]] = ..., custom_source: _Optional[bool] = ...) -> None: ...

class ReportModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportDataRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: ScriptData
    def __init__(self, data: _Optional[_Union[ScriptData, _Mapping]] = ...) -> None: ...

class ReportDataResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("error", "traceback", "running")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    error: str
    traceback: str
    running: bool
    def __init__(self, error: _Optional[str] = ..., traceback: _Optional[str] = ..., running: _Optional[bool] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitUntilReadyRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    def __init__(self, worker_id: _Optional[int] = ...) -> None: ...

class WaitUntilReadyResponse(_message.Message):
    __slots__ = ("leave", "start")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    start: Start
    def __init__(self, leave: _Optional[bool] = ..., start: _Optional[_Union[Start, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("strategy", "reason", "cluster", "torch_threads", "shards")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TORCH_THREADS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    reason: str
    cluster: Cluster
    torch_threads: int
    shards: _containers.RepeatedCompositeFieldContainer[SourceShard]
    def __init__(self, strategy: _Optional[str] = ..., reason: _Optional[str] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., torch_threads: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[SourceShard, _Mapping]]] = ...) -> None: ...

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

class LeaseMessage(_message.Message):
    __slots__ = ("lease_id", "kind", "task_id", "shard", "start", "end", "epoch", "offset", "retried", "evaluation", "states", "directory", "shard_records", "shard_size", "shard_mtime_ns")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SHARD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHARD_MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    kind: TaskKind
    task_id: int
    shard: str
    start: int
    end: int
    epoch: int
    offset: int
    retried: bool
    evaluation: int
    states: _containers.RepeatedCompositeFieldContainer[MetricState]
    directory: str
    shard_records: int
    shard_size: int
    shard_mtime_ns: int
    def __init__(self, lease_id: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., task_id: _Optional[int] = ..., shard: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., retried: _Optional[bool] = ..., evaluation: _Optional[int] = ..., states: _Optional[_Iterable[_Union[MetricState, _Mapping]]] = ..., directory: _Optional[str] = ..., shard_records: _Optional[int] = ..., shard_size: _Optional[int] = ..., shard_mtime_ns: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("worker_id", "want", "incarnation", "held", "leaving")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    want: int
    incarnation: int
    held: _containers.RepeatedScalarFieldContainer[int]
    leaving: bool
    def __init__(self, worker_id: _Optional[int] = ..., want: _Optional[int] = ..., incarnation: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ..., leaving: _Optional[bool] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("next", "leases", "retired_before", "cluster")
    class Next(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LEASED: _ClassVar[LeaseResponse.Next]
        WAIT: _ClassVar[LeaseResponse.Next]
        FINISHED: _ClassVar[LeaseResponse.Next]
        DRAIN: _ClassVar[LeaseResponse.Next]
        CLUSTER_CHANGED: _ClassVar[LeaseResponse.Next]
    LEASED: LeaseResponse.Next
    WAIT: LeaseResponse.Next
    FINISHED: LeaseResponse.Next
    DRAIN: LeaseResponse.Next
    CLUSTER_CHANGED: LeaseResponse.Next
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    next: LeaseResponse.Next
    leases: _containers.RepeatedCompositeFieldContainer[LeaseMessage]
    retired_before: int
    cluster: Cluster
    def __init__(self, next: _Optional[_Union[LeaseResponse.Next, str]] = ..., leases: _Optional[_Iterable[_Union[LeaseMessage, _Mapping]]] = ..., retired_before: _Optional[int] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ...) -> None: ...

class StateTensor(_message.Message):
    __slots__ = ("name", "value", "reduction")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: _tensor_pb2.TensorProto
    reduction: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., reduction: _Optional[str] = ...) -> None: ...

class MetricState(_message.Message):
    __slots__ = ("name", "object", "sum", "records", "tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    object: bool
    sum: float
    records: int
    tensors: _containers.RepeatedCompositeFieldContainer[StateTensor]
    def __init__(self, name: _Optional[str] = ..., object: _Optional[bool] = ..., sum: _Optional[float] = ..., records: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[StateTensor, _Mapping]]] = ...) -> None: ...

class TaskCounts(_message.Message):
    __slots__ = ("records", "steps", "nan_steps", "damaged")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NAN_STEPS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    records: int
    steps: int
    nan_steps: int
    damaged: int
    def __init__(self, records: _Optional[int] = ..., steps: _Optional[int] = ..., nan_steps: _Optional[int] = ..., damaged: _Optional[int] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[MetricState]
    def __init__(self, states: _Optional[_Iterable[_Union[MetricState, _Mapping]]] = ...) -> None: ...

class MetricValues(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ModelSnapshot(_message.Message):
    __slots__ = ("files", "watermarks", "version")
    class File(_message.Message):
        __slots__ = ("name", "size")
        NAME_FIELD_NUMBER: _ClassVar[int]
        SIZE_FIELD_NUMBER: _ClassVar[int]
        name: str
        size: int
        def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[ModelSnapshot.File]
    watermarks: _pserver_pb2.Watermarks
    version: int
    def __init__(self, files: _Optional[_Iterable[_Union[ModelSnapshot.File, _Mapping]]] = ..., watermarks: _Optional[_Union[_pserver_pb2.Watermarks, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class CompleteTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "counts", "metrics", "values", "snapshot")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    counts: TaskCounts
    metrics: Metrics
    values: MetricValues
    snapshot: ModelSnapshot
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., metrics: _Optional[_Union[Metrics, _Mapping]] = ..., values: _Optional[_Union[MetricValues, _Mapping]] = ..., snapshot: _Optional[_Union[ModelSnapshot, _Mapping]] = ...) -> None: ...

class CompleteTaskResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: _Optional[bool] = ...) -> None: ...

class ReleaseTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...

class ReleaseTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FailTaskRequest(_message.Message):
    __slots__ = ("worker_id", "lease_id", "counts", "error", "traceback", "fatal")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    lease_id: int
    counts: TaskCounts
    error: str
    traceback: str
    fatal: bool
    def __init__(self, worker_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., fatal: _Optional[bool] = ...) -> None: ...

class FailTaskResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "steps", "records", "loss", "version", "phase", "ring", "position", "pass_index", "pass_records", "left_out", "damaged", "epoch", "epochs", "records_before", "records_to_come", "logged")
    class LoggedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    PASS_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TO_COME_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    steps: int
    records: int
    loss: float
    version: int
    phase: str
    ring: int
    position: int
    pass_index: int
    pass_records: int
    left_out: int
    damaged: int
    epoch: int
    epochs: int
    records_before: int
    records_to_come: int
    logged: _containers.ScalarMap[str, float]
    def __init__(self, worker_id: _Optional[int] = ..., steps: _Optional[int] = ..., records: _Optional[int] = ..., loss: _Optional[float] = ..., version: _Optional[int] = ..., phase: _Optional[str] = ..., ring: _Optional[int] = ..., position: _Optional[int] = ..., pass_index: _Optional[int] = ..., pass_records: _Optional[int] = ..., left_out: _Optional[int] = ..., damaged: _Optional[int] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., records_before: _Optional[int] = ..., records_to_come: _Optional[int] = ..., logged: _Optional[_Mapping[str, float]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("drain", "known", "incarnation", "broken_ring", "stale_ring", "stopping")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BROKEN_RING_FIELD_NUMBER: _ClassVar[int]
    STALE_RING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    drain: bool
    known: bool
    incarnation: int
    broken_ring: int
    stale_ring: int
    stopping: bool
    def __init__(self, drain: _Optional[bool] = ..., known: _Optional[bool] = ..., incarnation: _Optional[int] = ..., broken_ring: _Optional[int] = ..., stale_ring: _Optional[int] = ..., stopping: _Optional[bool] = ...) -> None: ...

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

class StandByResponse(_message.Message):
    __slots__ = ("leave", "ring")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    ring: Ring
    def __init__(self, leave: _Optional[bool] = ..., ring: _Optional[_Union[Ring, _Mapping]] = ...) -> None: ...

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

class CommitCheckpointRequest(_message.Message):
    __slots__ = ("worker_id", "ring", "directory", "written")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    ring: int
    directory: str
    written: bool
    def __init__(self, worker_id: _Optional[int] = ..., ring: _Optional[int] = ..., directory: _Optional[str] = ..., written: _Optional[bool] = ...) -> None: ...

class CommitCheckpointResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: _Optional[bool] = ...) -> None: ...

class AgentWorker(_message.Message):
    __slots__ = ("local_rank", "pid", "exited", "code", "log")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    pid: int
    exited: bool
    code: int
    log: str
    def __init__(self, local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., exited: _Optional[bool] = ..., code: _Optional[int] = ..., log: _Optional[str] = ...) -> None: ...

class Experiment(_message.Message):
    __slots__ = ("script", "args", "folder", "machine", "rdzv_id", "digest")
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    RDZV_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    script: str
    args: _containers.RepeatedScalarFieldContainer[str]
    folder: str
    machine: str
    rdzv_id: str
    digest: str
    def __init__(self, script: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., folder: _Optional[str] = ..., machine: _Optional[str] = ..., rdzv_id: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class AgentReportRequest(_message.Message):
    __slots__ = ("node", "pid", "host", "workers", "done", "error", "traceback", "experiment", "address", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    pid: int
    host: str
    workers: _containers.RepeatedCompositeFieldContainer[AgentWorker]
    done: bool
    error: str
    traceback: str
    experiment: Experiment
    address: str
    port: int
    def __init__(self, node: _Optional[str] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[AgentWorker, _Mapping]]] = ..., done: _Optional[bool] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., experiment: _Optional[_Union[Experiment, _Mapping]] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class AgentReportResponse(_message.Message):
    __slots__ = ("kill", "node_rank", "nodes", "workers_wanted", "over", "error", "master_addr", "master_port", "stopping")
    KILL_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    kill: _containers.RepeatedScalarFieldContainer[int]
    node_rank: int
    nodes: int
    workers_wanted: int
    over: bool
    error: str
    master_addr: str
    master_port: int
    stopping: str
    def __init__(self, kill: _Optional[_Iterable[int]] = ..., node_rank: _Optional[int] = ..., nodes: _Optional[int] = ..., workers_wanted: _Optional[int] = ..., over: _Optional[bool] = ..., error: _Optional[str] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., stopping: _Optional[str] = ...) -> None: ...

class JoinRoundRequest(_message.Message):
    __slots__ = ("node", "min_nodes", "max_nodes", "last_call_s", "store")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_S_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    node: str
    min_nodes: int
    max_nodes: int
    last_call_s: float
    store: str
    def __init__(self, node: _Optional[str] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., last_call_s: _Optional[float] = ..., store: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("round", "rank", "nodes", "store")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    round: int
    rank: int
    nodes: int
    store: str
    def __init__(self, round: _Optional[int] = ..., rank: _Optional[int] = ..., nodes: _Optional[int] = ..., store: _Optional[str] = ...) -> None: ...

class JoinRoundResponse(_message.Message):
    __slots__ = ("closed", "place")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    place: Place
    def __init__(self, closed: _Optional[bool] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    __slots__ = ("node", "round")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    node: str
    round: int
    def __init__(self, node: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class GetRoundResponse(_message.Message):
    __slots__ = ("closed", "over", "waiting")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    closed: bool
    over: bool
    waiting: int
    def __init__(self, closed: _Optional[bool] = ..., over: _Optional[bool] = ..., waiting: _Optional[int] = ...) -> None: ...

class LeaveRoundRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: str
    def __init__(self, node: _Optional[str] = ...) -> None: ...

class LeaveRoundResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseRoundsRequest(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class CloseRoundsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessStatus(_message.Message):
    __slots__ = ("role", "id", "pid", "state", "address", "exit", "log")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    pid: int
    state: str
    address: str
    exit: str
    log: str
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., address: _Optional[str] = ..., exit: _Optional[str] = ..., log: _Optional[str] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "time", "level", "text", "traceback")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: float
    level: str
    text: str
    traceback: str
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[float] = ..., level: _Optional[str] = ..., text: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

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

class GetStatusRequest(_message.Message):
    __slots__ = ("events_after",)
    EVENTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    events_after: int
    def __init__(self, events_after: _Optional[int] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("job", "kind", "strategy", "strategy_reason", "state", "error", "traceback", "epoch", "epochs", "records_done", "records_total", "tasks_todo", "tasks_doing", "tasks_done", "processes", "rates", "steps", "loss", "evaluations", "events", "checkpoint", "damaged", "nan_steps", "wall_s", "workers_wanted", "usage_error", "records_begun", "logged")
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
    STRATEGY_REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TASKS_TODO_FIELD_NUMBER: _ClassVar[int]
    TASKS_DOING_FIELD_NUMBER: _ClassVar[int]
    TASKS_DONE_FIELD_NUMBER: _ClassVar[int]
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
    RECORDS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    job: str
    kind: str
    strategy: str
    strategy_reason: str
    state: str
    error: str
    traceback: str
    epoch: int
    epochs: int
    records_done: int
    records_total: int
    tasks_todo: int
    tasks_doing: int
    tasks_done: int
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
    records_begun: int
    logged: _containers.ScalarMap[str, float]
    def __init__(self, job: _Optional[str] = ..., kind: _Optional[str] = ..., strategy: _Optional[str] = ..., strategy_reason: _Optional[str] = ..., state: _Optional[str] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., records_done: _Optional[int] = ..., records_total: _Optional[int] = ..., tasks_todo: _Optional[int] = ..., tasks_doing: _Optional[int] = ..., tasks_done: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[ProcessStatus, _Mapping]]] = ..., rates: _Optional[_Mapping[str, float]] = ..., steps: _Optional[int] = ..., loss: _Optional[float] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., checkpoint: _Optional[str] = ..., damaged: _Optional[int] = ..., nan_steps: _Optional[int] = ..., wall_s: _Optional[float] = ..., workers_wanted: _Optional[int] = ..., usage_error: _Optional[bool] = ..., records_begun: _Optional[int] = ..., logged: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("min_workers", "max_workers")
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    min_workers: int
    max_workers: int
    def __init__(self, min_workers: _Optional[int] = ..., max_workers: _Optional[int] = ...) -> None: ...

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
