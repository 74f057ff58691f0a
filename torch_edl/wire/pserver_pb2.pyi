from torch_edl.wire import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Fence(_message.Message):
    __slots__ = ("job", "incarnation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    incarnation: int
    def __init__(self, job: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RecordRange(_message.Message):
    __slots__ = ("task_id", "first", "last")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    first: int
    last: int
    def __init__(self, task_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Initializer(_message.Message):
    __slots__ = ("kind", "args", "measured")
    class ArgsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    args: _containers.ScalarMap[str, float]
    measured: bool
    def __init__(self, kind: _Optional[str] = ..., args: _Optional[_Mapping[str, float]] = ..., measured: _Optional[bool] = ...) -> None: ...

class EmbeddingTableInfo(_message.Message):
    __slots__ = ("name", "dim", "initializer", "num_embeddings", "group", "min_count", "max_age", "modules", "max_rows", "max_bytes", "storage_dtype", "folder")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    NUM_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    initializer: Initializer
    num_embeddings: int
    group: int
    min_count: int
    max_age: int
    modules: _containers.RepeatedScalarFieldContainer[str]
    max_rows: int
    max_bytes: int
    storage_dtype: _tensor_pb2.DataType
    folder: str
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., initializer: _Optional[_Union[Initializer, _Mapping]] = ..., num_embeddings: _Optional[int] = ..., group: _Optional[int] = ..., min_count: _Optional[int] = ..., max_age: _Optional[int] = ..., modules: _Optional[_Iterable[str]] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., storage_dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ..., folder: _Optional[str] = ...) -> None: ...

class ParamGroup(_message.Message):
    __slots__ = ("hyper",)
    class HyperEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    HYPER_FIELD_NUMBER: _ClassVar[int]
    hyper: _containers.ScalarMap[str, float]
    def __init__(self, hyper: _Optional[_Mapping[str, float]] = ...) -> None: ...

class OptimizerConfig(_message.Message):
    __slots__ = ("kind", "groups")
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    groups: _containers.RepeatedCompositeFieldContainer[ParamGroup]
    def __init__(self, kind: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[ParamGroup, _Mapping]]] = ...) -> None: ...

class DenseParameter(_message.Message):
    __slots__ = ("name", "value", "group", "aliases")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: _tensor_pb2.TensorProto
    group: int
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., group: _Optional[int] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class PushDenseParametersRequest(_message.Message):
    __slots__ = ("fence", "optimizer", "parameters", "seed")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    optimizer: OptimizerConfig
    parameters: _containers.RepeatedCompositeFieldContainer[DenseParameter]
    seed: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., optimizer: _Optional[_Union[OptimizerConfig, _Mapping]] = ..., parameters: _Optional[_Iterable[_Union[DenseParameter, _Mapping]]] = ..., seed: _Optional[int] = ...) -> None: ...

class PushDenseParametersResponse(_message.Message):
    __slots__ = ("accepted", "version", "exact")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    version: int
    exact: _containers.RepeatedCompositeFieldContainer[DenseParameter]
    def __init__(self, accepted: _Optional[bool] = ..., version: _Optional[int] = ..., exact: _Optional[_Iterable[_Union[DenseParameter, _Mapping]]] = ...) -> None: ...

class PushEmbeddingTableInfosRequest(_message.Message):
    __slots__ = ("fence", "infos")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    INFOS_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    infos: _containers.RepeatedCompositeFieldContainer[EmbeddingTableInfo]
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., infos: _Optional[_Iterable[_Union[EmbeddingTableInfo, _Mapping]]] = ...) -> None: ...

class PushEmbeddingTableInfosResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TableIds(_message.Message):
    __slots__ = ("name", "ids", "same_ids_as", "ids_frame")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SAME_IDS_AS_FIELD_NUMBER: _ClassVar[int]
    IDS_FRAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: bytes
    same_ids_as: int
    ids_frame: int
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[bytes] = ..., same_ids_as: _Optional[int] = ..., ids_frame: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("fence", "dense", "dense_version", "tables", "read_only", "row_dtype")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    ROW_DTYPE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    dense: bool
    dense_version: int
    tables: _containers.RepeatedCompositeFieldContainer[TableIds]
    read_only: bool
    row_dtype: _tensor_pb2.DataType
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., dense: _Optional[bool] = ..., dense_version: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableIds, _Mapping]]] = ..., read_only: _Optional[bool] = ..., row_dtype: _Optional[_Union[_tensor_pb2.DataType, str]] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("initialized", "version", "dense", "vectors")
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    version: int
    dense: _tensor_pb2.TensorProto
    vectors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorProto]
    def __init__(self, initialized: _Optional[bool] = ..., version: _Optional[int] = ..., dense: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., vectors: _Optional[_Iterable[_Union[_tensor_pb2.TensorProto, _Mapping]]] = ...) -> None: ...

class TableGradient(_message.Message):
    __slots__ = ("name", "ids", "same_ids_as", "values", "ids_frame")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SAME_IDS_AS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    IDS_FRAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: bytes
    same_ids_as: int
    values: _tensor_pb2.TensorProto
    ids_frame: int
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[bytes] = ..., same_ids_as: _Optional[int] = ..., values: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., ids_frame: _Optional[int] = ...) -> None: ...

class PushGradientsRequest(_message.Message):
    __slots__ = ("fence", "range", "version", "dense", "tables", "learning_rates", "retired_before", "without_gradient", "exact")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    range: RecordRange
    version: int
    dense: _tensor_pb2.TensorProto
    tables: _containers.RepeatedCompositeFieldContainer[TableGradient]
    learning_rates: _containers.RepeatedScalarFieldContainer[float]
    retired_before: int
    without_gradient: _containers.RepeatedScalarFieldContainer[int]
    exact: _containers.RepeatedCompositeFieldContainer[DenseParameter]
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., range: _Optional[_Union[RecordRange, _Mapping]] = ..., version: _Optional[int] = ..., dense: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableGradient, _Mapping]]] = ..., learning_rates: _Optional[_Iterable[float]] = ..., retired_before: _Optional[int] = ..., without_gradient: _Optional[_Iterable[int]] = ..., exact: _Optional[_Iterable[_Union[DenseParameter, _Mapping]]] = ...) -> None: ...

class PushGradientsResponse(_message.Message):
    __slots__ = ("accepted", "duplicate", "version")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    duplicate: bool
    version: int
    def __init__(self, accepted: _Optional[bool] = ..., duplicate: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...

class ReadRowsRequest(_message.Message):
    __slots__ = ("fence", "name", "cursor")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    name: str
    cursor: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., name: _Optional[str] = ..., cursor: _Optional[int] = ...) -> None: ...

class ReadRowsResponse(_message.Message):
    __slots__ = ("ids", "vectors", "cursor")
    IDS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ids: _tensor_pb2.TensorProto
    vectors: _tensor_pb2.TensorProto
    cursor: int
    def __init__(self, ids: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., vectors: _Optional[_Union[_tensor_pb2.TensorProto, _Mapping]] = ..., cursor: _Optional[int] = ...) -> None: ...

class GetWatermarksRequest(_message.Message):
    __slots__ = ("fence", "task_ids")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetWatermarksResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("fence", "timeout_ms", "move")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    timeout_ms: int
    move: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., move: _Optional[int] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("task_id", "offset")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    offset: int
    def __init__(self, task_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Watermarks(_message.Message):
    __slots__ = ("retired_before", "tasks")
    RETIRED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    retired_before: int
    tasks: _containers.RepeatedCompositeFieldContainer[Watermark]
    def __init__(self, retired_before: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[Watermark, _Mapping]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("files", "watermarks", "version")
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    files: _containers.ScalarMap[str, int]
    watermarks: Watermarks
    version: int
    def __init__(self, files: _Optional[_Mapping[str, int]] = ..., watermarks: _Optional[_Union[Watermarks, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("initialized", "watermarks")
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    watermarks: Watermarks
    def __init__(self, initialized: _Optional[bool] = ..., watermarks: _Optional[_Union[Watermarks, _Mapping]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("fence", "targets", "directory", "move", "acknowledged")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    targets: Watermarks
    directory: str
    move: int
    acknowledged: Watermarks
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., targets: _Optional[_Union[Watermarks, _Mapping]] = ..., directory: _Optional[str] = ..., move: _Optional[int] = ..., acknowledged: _Optional[_Union[Watermarks, _Mapping]] = ...) -> None: ...

class SnapshotResponse(_message.Message):
    __slots__ = ("snapshot", "stall_ms")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STALL_MS_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    stall_ms: float
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., stall_ms: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("fence", "move")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    move: int
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., move: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ("fence",)
    FENCE_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ...) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PserverStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PserverStatusResponse(_message.Message):
    __slots__ = ("version", "rows")
    class RowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rows: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[int] = ..., rows: _Optional[_Mapping[str, int]] = ...) -> None: ...
