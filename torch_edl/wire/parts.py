"""Count the parts of a request before it is decoded.

An empty part has two bytes on the wire and a hundred times as many as a Python object, so the size
of a request does not limit the time and memory for decoding it.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from torch_edl.errors import UsageError

MOST = 1 << 18
"""Largest number of messages and elements of repeated fields in one request."""
_FEW_BYTES = 1 << 16  # a request of this size cannot reach the limit

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_EIGHT = (
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
)
_FOUR = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)


def require_few(kind: Any, raw: bytes) -> None:
    """Check the number of parts of an encoded message.

    Args:
        kind: descriptor of the message.

    Raises:
        UsageError: the message has more than :data:`MOST` parts.
        DecodeError: the bytes are not a message of this type.
    """
    if len(raw) <= _FEW_BYTES:
        return
    left, nested = MOST, [(kind, 0, len(raw))]
    try:
        while nested:
            each, at, end = nested.pop()
            fields = each.fields_by_number
            while at < end:
                key, at = _varint(raw, at)
                field, form = fields.get(key >> 3), key & 7
                if field is not None and (field.is_repeated or field.message_type is not None):
                    left -= 1
                if form == _BYTES:
                    size, at = _varint(raw, at)
                    if field is not None and field.message_type is not None:
                        nested.append((field.message_type, at, at + size))
                    elif field is not None and field.is_repeated and field.type not in _TEXTS:
                        left -= _packed(field, size)
                    at += size
                elif form == _VARINT:
                    _, at = _varint(raw, at)
                elif form in (_FIXED64, _FIXED32):
                    at += 8 if form == _FIXED64 else 4
                else:
                    raise DecodeError(f"a field of the form {form}")
                if left < 0:
                    raise UsageError(f"{kind.name}: more than {MOST} parts; send fewer at once")
            if at > end:
                raise DecodeError("a field beyond the end of its message")
    except IndexError:
        raise DecodeError("the message is cut off") from None


def _packed(field: FieldDescriptor, size: int) -> int:
    """Return the largest number of elements of a packed field in ``size`` bytes."""
    return size // (8 if field.type in _EIGHT else 4 if field.type in _FOUR else 1)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return its value and the position after it."""
    value = raw[at]
    at += 1
    if value < 0x80:
        return value, at
    value, shift = value & 0x7F, 7
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise DecodeError("a number of more than 64 bits")
