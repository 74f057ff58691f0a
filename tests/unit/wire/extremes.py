"""Every number of a request, set to values that a bug or somebody with the token may send."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F

_INT64 = (-(2**63), -2, -1, 0, 1, 2**31, 2**62, 2**63 - 1)
_INT32 = (-(2**31), -3, -2, -1, 0, 1, 2**31 - 1)
_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-320, 1e-40, 1e308)

_VALUES: dict[int, tuple[Any, ...]] = {
    F.TYPE_INT64: _INT64,
    F.TYPE_INT32: _INT32,
    F.TYPE_DOUBLE: _FLOATS,
}


def variants(base: Any) -> Iterator[tuple[str, Any]]:
    """Copies of ``base`` with one number changed each, and what was changed. Messages and lists
    that are empty in it are left so."""
    for path, kind in _numbers(base):
        for value in _VALUES[kind]:
            changed = type(base)()
            changed.CopyFrom(base)
            _set(changed, path, value)
            yield f"{'.'.join(map(str, path))} = {value}", changed


def _numbers(message: Any) -> Iterator[tuple[tuple[Any, ...], int]]:
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            for key, item in value.items():
                if isinstance(item, float):
                    yield (field.name, key), F.TYPE_DOUBLE
        elif field.type == F.TYPE_MESSAGE:
            inner = enumerate(value) if field.is_repeated else [(None, value)]
            for index, item in inner:
                if index is None and not message.HasField(field.name):
                    continue
                head = (field.name,) if index is None else (field.name, index)
                yield from ((head + path, kind) for path, kind in _numbers(item))
        elif field.type in _VALUES:
            if field.is_repeated:
                yield from (((field.name, i), field.type) for i in range(len(value)))
            else:
                yield (field.name,), field.type


def _is_map(field: Any) -> bool:
    return field.type == F.TYPE_MESSAGE and field.message_type.GetOptions().map_entry


def _set(message: Any, path: tuple[Any, ...], value: Any) -> None:
    *heads, last = path
    for head in heads:
        by_name = hasattr(message, "DESCRIPTOR")
        message = getattr(message, head) if by_name else message[head]
    if hasattr(message, "DESCRIPTOR"):
        setattr(message, last, value)
    else:
        message[last] = value
