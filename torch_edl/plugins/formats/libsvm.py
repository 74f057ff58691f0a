"""LibSVM (SVMlight): ``label [qid:number] index:value index:value ... # comment`` per line.

Records have the columns ``label`` (double), ``qid`` (int64, if the file has it), ``indices`` (list
of int64, as in the file) and ``values`` (list of double).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_edl.data.sources.files.lines import LineSource, MalformedError, MixedTypesError

_COMMENT = re.compile(rb"#[^\n]*")
_QID = re.compile(rb"^([ \t]*[^\s:]+[ \t]+)qid:(\d{1,18})(?=\s|\Z)", re.MULTILINE)
_SOME_QIDS = "some records have a qid, and some have none"
_COLON, _NEWLINE, _SPACE = b":\n "
_EXACT = 2.0**53  # doubles above this value do not represent all integers


class LibSvmSource(LineSource):
    """The records of a LibSVM file."""

    kind = "libsvm"
    comment = b"#"

    def parse(self, text: bytes | memoryview, schema: Any) -> Any:
        block = bytes(text)
        block = _COMMENT.sub(b"", block) if b"#" in block else block
        qids: list[int] = []
        if b"qid:" in block:
            qids = [int(found[2]) for found in _QID.finditer(block)]
            block = _QID.sub(rb"\1", block)
        labels, offsets, pairs = _parse(block)
        columns = {"label": labels}
        has_qid = bool(qids) if schema is None else "qid" in schema.names
        if len(qids) != (len(labels) if has_qid else 0):
            raise MalformedError(_SOME_QIDS)
        if has_qid:
            columns["qid"] = pa.array(qids, pa.int64())
        indices = pairs[:, 0].astype(np.int64)
        columns["indices"] = pa.ListArray.from_arrays(offsets, indices)
        columns["values"] = pa.ListArray.from_arrays(offsets, np.ascontiguousarray(pairs[:, 1]))
        return pa.table(columns)

    def merge(self, before: Any, found: Any) -> Any:
        if before.names and before != found:
            raise MixedTypesError(_SOME_QIDS)
        return found


def _parse(
    block: bytes,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return labels, offsets of the pairs of each record with a final end, and pairs of an index
    and a value; raise MalformedError with the first malformed record."""
    text = np.frombuffer(block, dtype=np.uint8)
    blank = text <= _SPACE
    begins = np.flatnonzero(~blank & np.concatenate(([True], blank[:-1])))  # starts of fields
    line_of_field = np.searchsorted(np.flatnonzero(text == _NEWLINE), begins)
    first = np.flatnonzero(np.diff(line_of_field, prepend=-1))  # first field of each record
    pairs = np.diff(first, append=len(begins)) - 1
    # Each field except the first of a record has one colon, neither at its start nor at its end.
    colons = np.flatnonzero(text == _COLON)
    at = np.searchsorted(begins, colons, side="right") - 1
    per_field = np.bincount(at, minlength=len(begins)) if len(begins) else np.zeros(0, np.int64)
    wanted = np.ones(len(begins), dtype=np.int64)
    wanted[first] = 0
    wrong = per_field != wanted
    after = np.concatenate((blank[1:], [True]))
    wrong[at[after[colons] | (begins[at] == colons)]] = True
    if wrong.any():
        raise _malformed(block, begins[np.argmax(wrong)], "no label and index:value")
    try:
        numbers = np.fromstring(block.replace(b":", b" ").decode("ascii"), sep=" ")
    except ValueError as error:
        raise _first_bad(block, begins) from error
    if len(numbers) != len(begins) + len(colons):
        raise _first_bad(block, begins)
    offsets = np.concatenate(([0], np.cumsum(pairs)))
    # A label is one number, and a pair is two numbers.
    label_at = np.arange(len(first)) + 2 * offsets[:-1]
    keep = np.ones(len(numbers), dtype=bool)
    keep[label_at] = False
    features = numbers[keep].reshape(-1, 2)
    odd = (features[:, 0] != np.trunc(features[:, 0])) | (np.abs(features[:, 0]) >= _EXACT)
    if odd.any():
        begin = begins[np.flatnonzero(wanted)[np.argmax(odd)]]
        raise _malformed(block, begin, "an index that is no integer")
    return numbers[label_at], offsets.astype(np.int32), features


def _first_bad(block: bytes, begins: npt.NDArray[np.int64]) -> MalformedError:
    for begin in begins:
        try:
            [float(part) for part in block[begin:].split(maxsplit=1)[0].split(b":")]
        except ValueError:
            return _malformed(block, begin, "not a number")
    return MalformedError("a number that cannot be read")


def _malformed(block: bytes, begin: int, why: str) -> MalformedError:
    return MalformedError(f"{why}: {block[begin : begin + 80].split(maxsplit=1)[0]!r}")
