from torch_edl.wire import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
