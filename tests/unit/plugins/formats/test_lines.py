"""Records of one line: JSON lines and LibSVM."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from torch_edl.data.sources import open_source
from torch_edl.errors import DataError
from torch_edl.plugins.formats.jsonl import JsonLinesSource


def read(path: Path, text: str | bytes, *, skip_damaged: bool = False) -> list[dict[str, object]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    source = open_source(str(path), skip_damaged=skip_damaged)
    found: list[dict[str, object]] = source.read(0, source.count).to_pylist()  # type: ignore[union-attr]
    return found


# ---- JSON lines ----


@pytest.fixture
def jsonl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each line is a block."""
    monkeypatch.setattr(JsonLinesSource, "block_bytes", 8)
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}\n{"a": 2.5}\n', [1.0, 2.5]),
        ('{"a": null}\n{"a": 1}\n', [None, 1]),
        ('{"b": 1}\n{"a": 1}\n', [None, 1]),
        ('{"a": "2020-01-01"}\n{"a": "soon"}\n', ["2020-01-01", "soon"]),
        ('{"a": {"b": 1}}\n{"a": {"c": []}}\n', [{"b": 1, "c": None}, {"b": None, "c": []}]),
        ('{"a": [1]}\n{"a": [2.5]}\n', [[1.0], [2.5]]),
        ('{"a": "x\\ny"}\r\n\r\n{"a": "é"}', ["x\ny", "é"]),
        ('{"a": 9223372036854775807}\n', [2**63 - 1]),
        ('{"a": 1e300}\n', [1e300]),
    ],
)
def test_a_column_has_one_type_over_the_whole_file(
    jsonl: Path, text: str, expected: list[object]
) -> None:
    assert [row["a"] for row in read(jsonl, text)] == expected
    source = open_source(str(jsonl))
    types = {source.read(i, i + 1).schema for i in range(source.count)}  # type: ignore[union-attr]
    assert len(types) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": 2}\n{"a": tru}\n', "jsonl at byte 18: line 3: JSON parse error: Invalid"),
        ('{"a": 1}\n{"a": 2}\x0b', "jsonl at byte 9: line 2: expected one JSON object per line"),
        ('{"a": 1}\n\n[2]\n', r"line 3: expected one JSON object per line, and found: \[2\]"),
        ('{"a":\n1}\n', r'line 1: expected one JSON object per line, and found: {"a":'),
        ('{"a": 1}\n{"a": "x"}\n', "line 2: column 'a' is string, and int64 before"),
        (
            '{"a": {"b": 1}}\n{"a": {"b": "x"}}\n',
            "line 2: column 'a.b' is string",
        ),
        ('{"a": 1}\n{"a": 2} {"a": 3}\n', "line 2: rows: 1, records: 2; write one record per row"),
        ('{"a": 1}\n{"a": 18446744073709551615}\n', "line 2: 18446744073709551615 does not fit"),
        ('{"a": [{"b": -9223372036854775809}]}\n', "line 1: -9223372036854775809 does not fit"),
        (b'{"a": "x"}\n{"a": "\xff"}\n', "line 2: text that is not UTF-8"),
        ("{}\n{}\n", "no record has a field"),
    ],
)
def test_a_malformed_record_is_named(jsonl: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(jsonl, text)


def test_malformed_records_are_left_out_if_asked(jsonl: Path) -> None:
    text = b'{"a": 1}\n{"a": tru}\nno\n{"a": "\xff"}\n{"a": 4}\n'
    assert read(jsonl, text, skip_damaged=True) == [{"a": 1}, {"a": 4}]
    assert open_source(str(jsonl), skip_damaged=True).damaged == 3


# ---- LibSVM ----


def test_comments_blank_lines_and_labels_alone(tmp_path: Path) -> None:
    text = "# a file\n1 1:2 3:4.5 # first\n\n-1 2:1e3\r\n0\n"
    assert read(tmp_path / "a.svm", text) == [
        {"label": 1.0, "indices": [1, 3], "values": [2.0, 4.5]},
        {"label": -1.0, "indices": [2], "values": [1000.0]},
        {"label": 0.0, "indices": [], "values": []},
    ]


def test_queries(tmp_path: Path) -> None:
    assert [row["qid"] for row in read(tmp_path / "a.svm", "1 qid:3 1:2\n2 qid:4\n")] == [3, 4]


def test_numbers_that_are_none(tmp_path: Path) -> None:
    (row,) = read(tmp_path / "a.svm", "1 1:nan 2:inf\n")
    values = row["values"]
    assert isinstance(values, list)
    assert math.isnan(values[0])
    assert values[1] == math.inf


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n1:2 3:4\n", "line 2: no label and index:value: b'1:2'"),
        ("1 1:1\n1 2:3:4 5\n", "line 2: no label and index:value: b'2:3:4'"),
        ("1 2:3\n1 2 3:4\n4:5\n", "line 2: no label and index:value: b'2'"),
        ("1 :2 3:\n", "line 1: no label and index:value: b':2'"),
        ("1 1:1\n1 1:x\n", "line 2: not a number: b'1:x'"),
        ("# a\n1 1:2\n1,2 1:2\n", "line 3: not a number: b'1,2'"),
        ("1 1:1\n1 1.5:2\n", r"line 2: an index that is no integer: b'1\.5:2'"),
        ("1 99999999999999999:2\n", "line 1: an index that is no integer"),
        ("1 qid:1 1:1\n1 1:1\n", "line 2: some records have a qid, and some have none"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.svm", text)


def test_malformed_lines_are_left_out_if_asked(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.svm", "1 1:1\nno\n2 3\n3 1:1\n", skip_damaged=True)
    assert [row["label"] for row in rows] == [1.0, 3.0]
