"""Converts columns of any library to texts, integers or numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_edl import _core
from torch_edl.errors import UsageError

Numbers = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]

Values = Any
"""A ``pyarrow.Array``, or a numpy array of numbers."""

_SHOWN = 20  # maximum number of columns that a message names


def take(records: Any, name: str) -> Values:
    """Return a column of records.

    Args:
        records: a table, a data frame, a mapping of names to arrays, tensors or lists, or a list of
            mappings, one per record.

    Raises:
        UsageError: the column does not exist, or does not have one value per record.
    """
    try:
        if are_rows(records):
            found: Any = [row[name] for row in records]
            # Arrow does not accept tensors with one number.
            found = np.asarray(found) if hasattr(found[0], "__array__") else found
        else:
            found = records.column(name) if isinstance(records, pa.Table) else records[name]
    except (KeyError, TypeError, ValueError, IndexError):
        raise UsageError(
            f"no column {name!r} in the records, which are {_described(records)}"
        ) from None
    return as_values(found, name)


def are_rows(records: Any) -> bool:
    """Return True for a list of mappings."""
    return isinstance(records, list) and bool(records) and isinstance(records[0], Mapping)


def _described(records: Any) -> str:
    records = records[0] if are_rows(records) else records
    names = getattr(records, "column_names", None)
    if names is None and isinstance(records, Mapping):
        names = list(records)
    if names is None:
        return f"{type(records).__name__}; expected a table, or a mapping of names to columns"
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"of the columns {shown}" + f", and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)


def as_values(found: Any, name: str) -> Values:
    """Return a column as an Arrow array without a dictionary, or as a numpy array of numbers
    (n,)."""
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    if isinstance(found, pa.Array):
        return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found
    try:
        values = found if isinstance(found, list | tuple) else np.asarray(found)
        if isinstance(values, np.ndarray):
            if values.ndim != 1:
                shape = values.shape
                raise UsageError(f"column {name!r}: shape {shape}; expected one value a record")
            if values.dtype.kind in "biuf":
                return values
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise UsageError(f"column {name!r}: not texts, nor numbers: {error}") from None


def is_text(values: Values) -> bool:
    """Return True for texts or bytes, False for numbers."""
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return isinstance(values, pa.Array) and values.type in kinds


def texts(values: Values, name: str) -> _core.Texts:
    """Return the column as texts; integers become their decimal digits.

    Raises:
        UsageError: the column has neither texts nor integers.
    """
    if not is_text(values):
        whole, missing = integers(values, name)
        values = pc.cast(pa.array(whole, mask=missing), pa.string())
    valid, offsets, data = values.buffers()
    wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    return _core.Texts(
        offsets, b"" if data is None else data, valid, values.offset, len(values), wide
    )


def integers(values: Values, name: str) -> tuple[Ids, npt.NDArray[np.bool_] | None]:
    """Return the column as int64, and a mask of missing values; None if none is missing.

    Raises:
        UsageError: the column cannot be converted to int64, or has fractions.
    """
    missing = None
    if isinstance(values, pa.Array):
        if is_text(values) or pa.types.is_null(values.type):
            values = _cast(values, pa.int64(), name)
        if values.null_count:
            missing = values.is_null().to_numpy(zero_copy_only=False)
            values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        values = _plain(values, name)
    if values.dtype.kind == "f":
        lacks = np.isnan(values)
        if lacks.any():
            missing, values = lacks, np.where(lacks, 0, values)
        if not (np.trunc(values) == values).all():
            raise UsageError(
                f"column {name!r}: numbers with fractions are no ids; bucketize() makes ids of them"
            )
    if len(values) and (values.dtype.kind == "f" or values.dtype == np.uint64):
        low, high = values.min().item(), values.max().item()
        if not -(2**63) <= low <= high < 2**63:
            wrong = low if low < -(2**63) else high
            raise UsageError(
                f"column {name!r}: {wrong} does not fit 64 bits with a sign; write ids modulo "
                "2**63, or as texts"
            )
    return np.ascontiguousarray(values, np.int64), missing


def numbers(values: Values, name: str) -> Numbers:
    """Return the column as float32 if it has this type, else as float64; missing values are NaN.

    Raises:
        UsageError: the column cannot be converted to numbers.
    """
    if isinstance(values, pa.Array):
        if is_text(values) or pa.types.is_null(values.type) or pa.types.is_decimal(values.type):
            values = _cast(values, pa.float64(), name)
        values = _plain(values, name)
    return np.ascontiguousarray(values, np.float32 if values.dtype == np.float32 else np.float64)


def _plain(values: pa.Array, name: str) -> npt.NDArray[Any]:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise UsageError(f"column {name!r} is of type {kind}; expected texts or numbers")
    found: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return found


def _cast(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert a column, for example texts to numbers; an empty text is a missing value."""
    try:
        if is_text(values):
            values = pc.if_else(pc.equal(values, pa.scalar("", values.type)), None, values)
        return pc.cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        fix = "; for texts, add .vocabulary(size) or .hash(buckets)" if is_text(values) else ""
        raise UsageError(f"column {name!r}: expected numbers: {error}{fix}") from None


def from_tensors(records: Any) -> bool:
    """Return True if the records are tensors of torch."""
    torch = sys.modules.get("torch")
    records = records[0] if are_rows(records) else records
    if torch is None or not isinstance(records, Mapping):
        return False
    return any(isinstance(value, torch.Tensor) for value in records.values())


def to_tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the arrays as tensors of torch, without a copy."""
    from_numpy = sys.modules["torch"].from_numpy
    return {name: from_numpy(array) for name, array in arrays.items()}
