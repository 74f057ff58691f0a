from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentWorker(_message.Message):
    __slots__ = ("local_rank", "pid", "exited", "code", "log", "in_loop", "why")
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    IN_LOOP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    local_rank: int
    pid: int
    exited: bool
    code: int
    log: str
    in_loop: bool
    why: str
    def __init__(self, local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., exited: _Optional[bool] = ..., code: _Optional[int] = ..., log: _Optional[str] = ..., in_loop: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("node", "host", "workers", "done", "error", "traceback", "experiment", "address", "port", "id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    workers: _containers.RepeatedCompositeFieldContainer[AgentWorker]
    done: bool
    error: str
    traceback: str
    experiment: Experiment
    address: str
    port: int
    id: str
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[AgentWorker, _Mapping]]] = ..., done: _Optional[bool] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ..., experiment: _Optional[_Union[Experiment, _Mapping]] = ..., address: _Optional[str] = ..., port: _Optional[int] = ..., id: _Optional[str] = ...) -> None: ...

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
