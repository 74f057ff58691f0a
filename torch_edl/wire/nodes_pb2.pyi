from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class RunningProcess(_message.Message):
    __slots__ = ("role", "id", "pid", "log", "failing")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    pid: int
    log: str
    failing: bool
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., pid: _Optional[int] = ..., log: _Optional[str] = ..., failing: _Optional[bool] = ...) -> None: ...

class EndedProcess(_message.Message):
    __slots__ = ("role", "id", "code", "why", "own_fault", "not_started", "open_loop", "error", "traceback")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    OWN_FAULT_FIELD_NUMBER: _ClassVar[int]
    NOT_STARTED_FIELD_NUMBER: _ClassVar[int]
    OPEN_LOOP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    code: int
    why: str
    own_fault: bool
    not_started: bool
    open_loop: str
    error: str
    traceback: str
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., code: _Optional[int] = ..., why: _Optional[str] = ..., own_fault: _Optional[bool] = ..., not_started: _Optional[bool] = ..., open_loop: _Optional[str] = ..., error: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class NodeReportRequest(_message.Message):
    __slots__ = ("node", "incarnation", "running", "ended", "waits", "version", "host", "slots", "leaves", "experiment", "address", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    running: _containers.RepeatedCompositeFieldContainer[RunningProcess]
    ended: _containers.RepeatedCompositeFieldContainer[EndedProcess]
    waits: bool
    version: int
    host: str
    slots: int
    leaves: bool
    experiment: Experiment
    address: str
    port: int
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., running: _Optional[_Iterable[_Union[RunningProcess, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[EndedProcess, _Mapping]]] = ..., waits: _Optional[bool] = ..., version: _Optional[int] = ..., host: _Optional[str] = ..., slots: _Optional[int] = ..., leaves: _Optional[bool] = ..., experiment: _Optional[_Union[Experiment, _Mapping]] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class JobOfNode(_message.Message):
    __slots__ = ("name", "incarnation", "preload", "environment", "model_file", "digest", "code", "folder", "mark")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CodeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    preload: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    model_file: str
    digest: str
    code: _containers.ScalarMap[str, bytes]
    folder: str
    mark: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., preload: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., model_file: _Optional[str] = ..., digest: _Optional[str] = ..., code: _Optional[_Mapping[str, bytes]] = ..., folder: _Optional[str] = ..., mark: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("words", "env", "stdout", "stderr", "error_file", "terminates_group")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORDS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_FIELD_NUMBER: _ClassVar[int]
    TERMINATES_GROUP_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    stdout: str
    stderr: str
    error_file: str
    terminates_group: bool
    def __init__(self, words: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., stdout: _Optional[str] = ..., stderr: _Optional[str] = ..., error_file: _Optional[str] = ..., terminates_group: _Optional[bool] = ...) -> None: ...

class StartProcess(_message.Message):
    __slots__ = ("role", "id", "module", "args", "command")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    module: str
    args: _containers.RepeatedScalarFieldContainer[str]
    command: Command
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., module: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., command: _Optional[_Union[Command, _Mapping]] = ...) -> None: ...

class StopProcess(_message.Message):
    __slots__ = ("role", "id", "grace_s")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    role: str
    id: int
    grace_s: float
    def __init__(self, role: _Optional[str] = ..., id: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class NodeReportResponse(_message.Message):
    __slots__ = ("run", "stop", "leave", "version", "why", "failed", "job")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    run: _containers.RepeatedCompositeFieldContainer[StartProcess]
    stop: _containers.RepeatedCompositeFieldContainer[StopProcess]
    leave: bool
    version: int
    why: str
    failed: bool
    job: JobOfNode
    def __init__(self, run: _Optional[_Iterable[_Union[StartProcess, _Mapping]]] = ..., stop: _Optional[_Iterable[_Union[StopProcess, _Mapping]]] = ..., leave: _Optional[bool] = ..., version: _Optional[int] = ..., why: _Optional[str] = ..., failed: _Optional[bool] = ..., job: _Optional[_Union[JobOfNode, _Mapping]] = ...) -> None: ...
