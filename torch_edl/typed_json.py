"""The reader of the JSON that torch-edl writes: checkpoints, ledgers, and folders of jobs.

Such a file may have been cut by a full disk, changed on the way, or edited. :func:`parse` returns a
value of the expected type or raises ValueError with the place of the first wrong value, whatever
the text is. Types are dataclasses, TypedDicts, ``list``, ``tuple``, ``dict``, unions, ``bool``,
``int`` of 64 bits, ``float``, ``str``, literals and ``Any``; :class:`Range` limits a number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

MOST_BYTES = 32 << 20
"""Size of a text that is parsed."""
MOST_DEPTH = 64
"""Levels of lists and objects within a value of the type ``Any``."""

_T = TypeVar("_T")
_Check = Callable[[Any], Any]
_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class Range:
    """The limits of a number, both inclusive: ``Annotated[int, Range(0, 9)]``."""

    low: float
    high: float


Count = Annotated[int, Range(0, (1 << 63) - 1)]
"""A number of records, steps, bytes, ..."""
Time = Annotated[float, Range(0, 1e11)]
"""A Unix time in seconds."""


class _Mismatch(Exception):
    """A value is not of the expected type."""

    def __init__(self, value: Any, expected: str) -> None:
        if isinstance(value, list | tuple | dict):
            text = "an object" if isinstance(value, dict) else "a list"
        else:
            text = json.dumps(value, default=repr)[:_SHOWN]
        super().__init__(f"{text}, expected {expected}")
        self.keys: list[Any] = []  # from the value outwards


def read(path: Path) -> bytes:
    """Return the content of a file for :func:`parse`.

    Raises:
        ValueError: the file is larger than :data:`MOST_BYTES`.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{size:,} bytes, more than {MOST_BYTES:,}")
        return file.read(size)


def parse(text: str | bytes, kind: type[_T], *, finite: bool = True) -> _T:
    """Return the value of a JSON text.

    Args:
        kind: expected type. The fields of a dataclass are the keys of an object; a TypedDict admits
            further keys.
        finite: reject NaN and infinite numbers, which JSON does not have and Python writes.

    Raises:
        ValueError: the text is longer than :data:`MOST_BYTES`, is not JSON, or has a value of
            another type.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"a text of {len(text):,} bytes, more than {MOST_BYTES:,}")
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        found = (_FINITE if finite else _LENIENT).decode(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None
    return convert(found, kind)


def convert(value: Any, kind: type[_T]) -> _T:
    """Return plain data, such as of a YAML file, as a value of a type; see :func:`parse`.

    Raises:
        ValueError: a value has another type; also what ``__post_init__`` of a dataclass raises.
    """
    found: _T = converter(kind)(value)
    return found


def converter(kind: Any) -> Callable[[Any], Any]:
    """Return :func:`convert` for one type, for many values: it finds the type once."""
    check = _reader(kind)

    def convert(value: Any) -> Any:
        try:
            return check(value)
        except _Mismatch as wrong:
            place = ".".join(str(key)[:_SHOWN] for key in reversed(wrong.keys))
            raise ValueError(f"{place}: {wrong}" if place else str(wrong)) from None

    return convert


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_SHOWN]}: not a finite number")
    return value


# Made once: json.loads makes a decoder at each call with arguments.
_FINITE = json.JSONDecoder(parse_constant=_number, parse_float=_number)
_LENIENT = json.JSONDecoder()


@functools.cache
def _reader(kind: Any) -> _Check:
    """Return the function that checks and converts a value of a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _within(_reader(args[0]), args[1])
    if origin is typing.Literal:
        return _literal(args)
    if origin in (typing.Union, types.UnionType):
        return _one_of([_reader(each) for each in args], str(kind))
    if origin is tuple and args[-1] is not ...:
        return _fixed([_reader(each) for each in args])
    if origin in (list, tuple):
        return _list(_reader(args[0]), origin)
    if origin in (dict, Mapping):
        return _dict(_key_reader(args[0]), _reader(args[1]))
    if origin is NotRequired:
        return _reader(args[0])
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.is_typeddict(kind):
        return _typed_dict(kind)
    return _PLAIN[kind]


def _plain(names: str, *accepted: type) -> _Check:
    def check(value: Any) -> Any:
        if type(value) not in accepted:  # a bool is no number
            raise _Mismatch(value, names)
        return value

    return check


def _literal(accepted: tuple[Any, ...]) -> _Check:
    def check(value: Any) -> Any:
        if value not in accepted:
            raise _Mismatch(value, f"one of {', '.join(map(repr, accepted))}")
        return value

    return check


def _any(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for each in level
            if type(each) not in _SCALARS and isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise _Mismatch(value, f"at most {MOST_DEPTH} levels of lists and objects")


_SCALARS = frozenset({int, float, str, bool, type(None)})
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


def _integer(value: Any) -> int:
    if type(value) is not int or not _LOWEST <= value <= _HIGHEST:
        raise _Mismatch(value, "an integer of 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) is not float and (type(value) is not int or not _LOWEST <= value <= _HIGHEST):
        raise _Mismatch(value, "a number")
    return value


_PLAIN: dict[Any, _Check] = {
    bool: _plain("true or false", bool),
    int: _integer,
    float: _float,
    str: _plain("a text", str),
    type(None): _plain("null", type(None)),
    Any: _any,
}


def _key_reader(kind: Any) -> _Check:
    if typing.get_origin(kind) is Annotated:
        base, limits = typing.get_args(kind)
        return _within(_key_reader(base), limits)
    return _reader(str) if kind is str else _key


def _key(text: str) -> int:
    """Return the integer that is the key of an object."""
    try:
        if str(number := int(text[:_SHOWN])) == text:
            return number
    except ValueError:
        pass
    raise _Mismatch(text, "an integer as the key")


def _within(number_of: _Check, limits: Range) -> _Check:
    expected = f"a number from {limits.low} to {limits.high}"

    def checked(value: Any) -> Any:
        number = number_of(value)
        if not limits.low <= number <= limits.high:
            raise _Mismatch(value, expected)
        return number

    return checked


def _one_of(readers: list[_Check], expected: str) -> _Check:
    def check(value: Any) -> Any:
        for each in readers:
            try:
                return each(value)
            except _Mismatch as wrong:
                if wrong.keys:  # of the right kind, and wrong within
                    raise
        raise _Mismatch(value, expected)

    return check


def _list(item: _Check, made: type) -> _Check:
    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _Mismatch(value, "a list")
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each))
        except _Mismatch as wrong:
            wrong.keys.append(len(found))
            raise
        return made(found)

    return check


def _fixed(items: list[_Check]) -> _Check:
    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise _Mismatch(value, f"a list of {len(items)} values")
        return tuple([item(each) for item, each in zip(items, value, strict=True)])

    return check


def _dict(key: _Check, item: _Check) -> _Check:
    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Mismatch(value, "an object")
        found = {}
        for name, each in value.items():
            try:
                found[key(name)] = item(each)
            except _Mismatch as wrong:
                wrong.keys.append(name)
                raise
        return found

    return check


def _dataclass(kind: Any) -> _Check:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}
    required = {
        each.name
        for each in dataclasses.fields(kind)
        if each.init and each.default is each.default_factory is dataclasses.MISSING
    }
    fields_of = _object(fields, required, f"one of the keys {', '.join(fields)}")
    return lambda value: value if isinstance(value, kind) else kind(**fields_of(value))


def _typed_dict(kind: Any) -> _Check:
    fields = typing.get_type_hints(kind, include_extras=True)
    # __required_keys__ does not know NotRequired in modules with postponed annotations.
    required = [name for name, hint in fields.items() if typing.get_origin(hint) is not NotRequired]
    return _object(fields, required, "")


def _object(fields: Mapping[str, Any], required: Iterable[str], known: str) -> _Check:
    """Return the reader of an object with these fields; ``known`` tells that it has no others."""
    readers = {name: _reader(each) for name, each in fields.items()}

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _Mismatch(value, "an object")
        for name in required:
            if name not in value:
                raise _Mismatch(value, f"the key {name}")
        found = {}
        for name, each in value.items():
            if known and name not in readers:
                raise _Mismatch(name, known)
            try:
                found[name] = readers.get(name, _any)(each)
            except _Mismatch as wrong:
                wrong.keys.append(name)
                raise
        return found

    return check
