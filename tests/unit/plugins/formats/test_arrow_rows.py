"""Rows are looked at as thoroughly as Arrow does it."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pyarrow as pa
import pytest

from torch_edl.plugins.formats import arrow as module
from torch_edl.plugins.formats.arrow import RowCheck

_TEXTS = ["plain", "", "größer", None, "more"]
_SCHEMAS = [
    {"n": pa.int64(), "t": pa.string()},
    {"t": pa.large_string(), "b": pa.binary()},
    {"l": pa.list_(pa.int32()), "d": pa.dictionary(pa.int8(), pa.string())},
]


def column(kind: Any, texts: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(texts).dictionary_encode().cast(kind)
    if pa.types.is_list(kind):
        return pa.array([None if text is None else list(text.encode()) for text in texts], kind)
    if pa.types.is_integer(kind):
        return pa.array([None if text is None else len(text) for text in texts], kind)
    return pa.array(texts).cast(kind)


def spoiled(array: Any, noise: random.Random) -> Any:
    """The array with a byte of one of its buffers overwritten."""
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(
            spoiled(array.indices, noise), array.dictionary, safe=False
        )
    buffers = [None if b is None else bytearray(b.to_pybytes()) for b in array.buffers()]
    # Not the bits of what is null: there Arrow compares numbers that a slice counts anew.
    buffer = noise.choice([b for b in buffers[1:] if b])
    buffer[noise.randrange(len(buffer))] = noise.choice([0, 1, 7, 0x7F, 0x80, 0xFF])
    if pa.types.is_list(array.type):
        own = [None if b is None else pa.py_buffer(b) for b in buffers[:2]]
        return pa.Array.from_buffers(array.type, len(array), own, children=[array.values])
    made = [None if b is None else pa.py_buffer(b) for b in buffers]
    return pa.Array.from_buffers(array.type, len(array), made)


@pytest.mark.parametrize("schema", _SCHEMAS, ids=lambda schema: "-".join(schema))
def test_damage_is_found_as_arrow_finds_it(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW_ROWS", 0)
    noise = random.Random(0)
    found = 0
    for _ in range(400):
        texts = noise.choices(_TEXTS if noise.random() < 0.5 else ["plain", "more"], k=20)
        columns = {name: column(kind, texts) for name, kind in schema.items()}
        name = noise.choice(list(columns))
        with contextlib.suppress(pa.ArrowInvalid):  # some damage cannot even be made
            columns[name] = spoiled(columns[name], noise)
        rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        rows = rows.slice(noise.randrange(10))
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid:
            found += 1
            with pytest.raises(pa.ArrowInvalid):
                RowCheck(rows.schema)(rows)
        else:
            RowCheck(rows.schema)(rows)
    assert found > 20


def test_what_is_nested_is_not_looked_at_by_slices() -> None:
    flat, nested = pa.schema(_SCHEMAS[0].items()), pa.schema(_SCHEMAS[2].items())
    assert RowCheck(flat).is_flat
    assert not RowCheck(nested).is_flat
