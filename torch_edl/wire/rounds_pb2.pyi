from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
