from torch_edl.wire import cluster_pb2 as _cluster_pb2
from torch_edl.wire import counts_pb2 as _counts_pb2
from torch_edl.wire import metrics_pb2 as _metrics_pb2
from torch_edl.wire import tasks_pb2 as _tasks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("worker_id", "pid", "host", "node", "local_rank", "training", "missing")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    pid: int
    host: str
    node: str
    local_rank: int
    training: int
    missing: str
    def __init__(self, worker_id: _Optional[int] = ..., pid: _Optional[int] = ..., host: _Optional[str] = ..., node: _Optional[str] = ..., local_rank: _Optional[int] = ..., training: _Optional[int] = ..., missing: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("config_json", "worker_id", "ring", "wait", "leave", "trained", "results", "models")
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    config_json: str
    worker_id: int
    ring: int
    wait: bool
    leave: bool
    trained: str
    results: _containers.RepeatedCompositeFieldContainer[MeetingResult]
    models: str
    def __init__(self, config_json: _Optional[str] = ..., worker_id: _Optional[int] = ..., ring: _Optional[int] = ..., wait: _Optional[bool] = ..., leave: _Optional[bool] = ..., trained: _Optional[str] = ..., results: _Optional[_Iterable[_Union[MeetingResult, _Mapping]]] = ..., models: _Optional[str] = ...) -> None: ...

class MeetingResult(_message.Message):
    __slots__ = ("passes", "number", "value")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    passes: int
    number: int
    value: str
    def __init__(self, passes: _Optional[int] = ..., number: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("name", "records", "size", "mtime_ns", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: int
    size: int
    mtime_ns: int
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., records: _Optional[int] = ..., size: _Optional[int] = ..., mtime_ns: _Optional[int] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ReportModelRequest(_message.Message):
    __slots__ = ("embeddings", "dense_elements", "optimizer", "optimizer_error", "shards", "custom_source", "preprocessing", "device")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DENSE_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_ERROR_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[EmbeddingReport]
    dense_elements: int
    optimizer: str
    optimizer_error: str
    shards: _containers.RepeatedCompositeFieldContainer[SourceShard]
    custom_source: bool
    preprocessing: str
    device: str
    def __init__(self, embeddings: _Optional[_Iterable[_Union[EmbeddingReport, _Mapping]]] = ..., dense_elements: _Optional[int] = ..., optimizer: _Optional[str] = ..., optimizer_error: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[SourceShard, _Mapping]]] = ..., custom_source: _Optional[bool] = ..., preprocessing: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class ReportModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScriptData(_message.Message):
    __slots__ = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files", "samples", "open", "first_records")
    class FirstRecordsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_PER_TASK_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: int
    epochs: int
    batch_size: int
    records_per_task: int
    shuffle: bool
    seed: int
    files: str
    samples: str
    open: bool
    first_records: _containers.ScalarMap[str, str]
    def __init__(self, records: _Optional[int] = ..., epochs: _Optional[int] = ..., batch_size: _Optional[int] = ..., records_per_task: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., files: _Optional[str] = ..., samples: _Optional[str] = ..., open: _Optional[bool] = ..., first_records: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReportDataRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: ScriptData
    def __init__(self, data: _Optional[_Union[ScriptData, _Mapping]] = ...) -> None: ...

class ReportDataResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("error", "traceback", "running", "untried")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    UNTRIED_FIELD_NUMBER: _ClassVar[int]
    error: str
    traceback: str
    running: bool
    untried: bool
    def __init__(self, error: _Optional[str] = ..., traceback: _Optional[str] = ..., running: _Optional[bool] = ..., untried: _Optional[bool] = ...) -> None: ...

class ReportFailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitUntilReadyRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    def __init__(self, worker_id: _Optional[int] = ...) -> None: ...

class WaitUntilReadyResponse(_message.Message):
    __slots__ = ("leave", "start", "fit")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    start: Start
    fit: bool
    def __init__(self, leave: _Optional[bool] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., fit: _Optional[bool] = ...) -> None: ...

class FitPreprocessingRequest(_message.Message):
    __slots__ = ("worker_id", "preprocessing", "shards")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    preprocessing: str
    shards: _containers.RepeatedCompositeFieldContainer[SourceShard]
    def __init__(self, worker_id: _Optional[int] = ..., preprocessing: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[SourceShard, _Mapping]]] = ...) -> None: ...

class FitPreprocessingResponse(_message.Message):
    __slots__ = ("leave", "fit", "fitted")
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    FITTED_FIELD_NUMBER: _ClassVar[int]
    leave: bool
    fit: bool
    fitted: bytes
    def __init__(self, leave: _Optional[bool] = ..., fit: _Optional[bool] = ..., fitted: _Optional[bytes] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("strategy", "reason", "cluster", "torch_threads", "shards", "preprocessing", "trial")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TORCH_THREADS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_FIELD_NUMBER: _ClassVar[int]
    TRIAL_FIELD_NUMBER: _ClassVar[int]
    strategy: str
    reason: str
    cluster: _cluster_pb2.Cluster
    torch_threads: int
    shards: _containers.RepeatedCompositeFieldContainer[SourceShard]
    preprocessing: bytes
    trial: _tasks_pb2.LeaseMessage
    def __init__(self, strategy: _Optional[str] = ..., reason: _Optional[str] = ..., cluster: _Optional[_Union[_cluster_pb2.Cluster, _Mapping]] = ..., torch_threads: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[SourceShard, _Mapping]]] = ..., preprocessing: _Optional[bytes] = ..., trial: _Optional[_Union[_tasks_pb2.LeaseMessage, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker_id", "steps", "records", "loss", "version", "phase", "ring", "position", "pass_index", "pass_records", "left_out", "damaged", "epoch", "epochs", "records_before", "records_to_come", "records_left", "records_early", "logged", "usage", "nan_updates", "leaving", "notice", "machine", "busy_s", "stacks", "stacks_number", "epochs_heard", "seconds", "standstill", "training")
    class LoggedEntry(_message.Message):
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
    class SecondsEntry(_message.Message):
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
    RECORDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_EARLY_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    NAN_UPDATES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    STACKS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_HEARD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STANDSTILL_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
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
    records_left: int
    records_early: int
    logged: _containers.ScalarMap[str, float]
    usage: _counts_pb2.Usage
    nan_updates: int
    leaving: bool
    notice: str
    machine: _containers.ScalarMap[str, float]
    busy_s: float
    stacks: str
    stacks_number: int
    epochs_heard: int
    seconds: _containers.ScalarMap[str, float]
    standstill: Standstill
    training: int
    def __init__(self, worker_id: _Optional[int] = ..., steps: _Optional[int] = ..., records: _Optional[int] = ..., loss: _Optional[float] = ..., version: _Optional[int] = ..., phase: _Optional[str] = ..., ring: _Optional[int] = ..., position: _Optional[int] = ..., pass_index: _Optional[int] = ..., pass_records: _Optional[int] = ..., left_out: _Optional[int] = ..., damaged: _Optional[int] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., records_before: _Optional[int] = ..., records_to_come: _Optional[int] = ..., records_left: _Optional[int] = ..., records_early: _Optional[int] = ..., logged: _Optional[_Mapping[str, float]] = ..., usage: _Optional[_Union[_counts_pb2.Usage, _Mapping]] = ..., nan_updates: _Optional[int] = ..., leaving: _Optional[bool] = ..., notice: _Optional[str] = ..., machine: _Optional[_Mapping[str, float]] = ..., busy_s: _Optional[float] = ..., stacks: _Optional[str] = ..., stacks_number: _Optional[int] = ..., epochs_heard: _Optional[int] = ..., seconds: _Optional[_Mapping[str, float]] = ..., standstill: _Optional[_Union[Standstill, _Mapping]] = ..., training: _Optional[int] = ...) -> None: ...

class Standstill(_message.Message):
    __slots__ = ("began_s", "ended_s")
    BEGAN_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    began_s: float
    ended_s: float
    def __init__(self, began_s: _Optional[float] = ..., ended_s: _Optional[float] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("drain", "known", "broken_ring", "stale_ring", "stopping", "newest_server", "stacks_number", "epochs_open", "epoch_ends", "give_back", "tell_machine")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    BROKEN_RING_FIELD_NUMBER: _ClassVar[int]
    STALE_RING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    NEWEST_SERVER_FIELD_NUMBER: _ClassVar[int]
    STACKS_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_OPEN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_ENDS_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    TELL_MACHINE_FIELD_NUMBER: _ClassVar[int]
    drain: bool
    known: bool
    broken_ring: int
    stale_ring: int
    stopping: bool
    newest_server: int
    stacks_number: int
    epochs_open: int
    epoch_ends: _containers.RepeatedCompositeFieldContainer[_metrics_pb2.MetricValues]
    give_back: bool
    tell_machine: bool
    def __init__(self, drain: _Optional[bool] = ..., known: _Optional[bool] = ..., broken_ring: _Optional[int] = ..., stale_ring: _Optional[int] = ..., stopping: _Optional[bool] = ..., newest_server: _Optional[int] = ..., stacks_number: _Optional[int] = ..., epochs_open: _Optional[int] = ..., epoch_ends: _Optional[_Iterable[_Union[_metrics_pb2.MetricValues, _Mapping]]] = ..., give_back: _Optional[bool] = ..., tell_machine: _Optional[bool] = ...) -> None: ...
