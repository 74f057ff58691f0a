"""Text files: types of a sample, and records that do not have them; rows found without parsing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest

from torch_edl.data.sources import open_source
from torch_edl.data.sources.base import Records
from torch_edl.data.sources.files import lines
from torch_edl.data.sources.files.blocks import BlockSource
from torch_edl.data.sources.files.rows import find_rows
from torch_edl.errors import DataError

ROWS = 1000
ODD = 401
"""A record that is not in the sample: of its about 100 blocks, these are the first and the last."""


@pytest.fixture(autouse=True)
def _small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockSource, "block_bytes", 60)
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 120)


def csv(odd: str) -> bytes:
    rows = [f"{i},{i},\n" for i in range(ROWS)]
    rows[ODD] = odd
    return ("a,b,c\n" + "".join(rows)).encode()


def jsonl(odd: str) -> bytes:
    rows = [json.dumps({"a": i, "b": i, "c": None}) + "\n" for i in range(ROWS)]
    rows[ODD] = odd
    return "".join(rows).encode()


def svm(odd: str) -> bytes:
    rows = [f"{i} 1:{i}\n" for i in range(ROWS)]
    rows[ODD] = odd
    return "".join(rows).encode()


def column(records: Records, name: str) -> list[object]:
    assert isinstance(records, pa.Table)
    values: list[object] = records[name].to_pylist()
    return values


DEEP = "[" * 99 + "]" * 99

CASES = [
    ("a.csv", csv("1,2.5,\n"), "line 403: column 'b': '2.5' is no int64"),
    ("a.csv", csv(f"{2**63},1,\n"), f"line 403: column 'a': '{2**63}' is no int64"),
    ("a.csv", csv("1,2,3,4\n"), "line 403: a row of 4 fields, the header has 3: '1,2,3,4'"),
    ("a.csv", csv("1\n"), "line 403: a row of 1 fields, the header has 3: '1'"),
    ("a.jsonl", jsonl('{"a": 1, "b": 2.5}\n'), "line 402: .* couldn't parse:2.5"),
    ("a.jsonl", jsonl(f'{{"a": {2**63}}}\n'), "line 402: .* couldn't parse:9223372036854775808"),
    ("a.jsonl", jsonl('{"a": "x"}\n'), r"line 402: .*Column\(/a\) changed from number to string"),
    ("a.jsonl", jsonl('{"a": tru}\n'), "line 402: JSON parse error"),
    ("a.jsonl", jsonl("[1]\n"), "line 402: expected one JSON object per line"),
    ("a.jsonl", jsonl('{"a": 1} {"a": 2}\n'), "line 402: rows: 1, records: 2"),
    ("a.jsonl", jsonl(f'{{"c": {DEEP}}}\n'), "line 402: more than 64 objects"),
    ("a.svm", svm("1 2:x\n"), "line 402: not a number: b'2:x'"),
    ("a.svm", svm("1 qid:1 2:1\n"), "line 402: some records have a qid"),
]


@pytest.mark.parametrize(("name", "text", "message"), CASES)
def test_a_record_without_the_types_of_the_sample_is_named_when_it_is_read(
    tmp_path: Path, name: str, text: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    source = open_source(str(path))
    assert (source.count, source.damaged) == (ROWS, 0)
    assert len(source.read(0, 300)) == 300
    with pytest.raises(DataError, match=message) as caught:
        source.read(ODD - 100, ODD + 100)
    assert "--skip-damaged" in str(caught.value)
    lines_before = text[: caught.value.offset].count(b"\n")
    assert f"line {lines_before + 1}:" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", csv("1,2,3,4\n")),
        ("a.jsonl", jsonl('{"a": tru}\n')),
        ("a.jsonl", jsonl('{"a": 1} {"a": 2}\n')),
        ("a.svm", svm("1 2:x\n")),
    ],
)
def test_all_records_are_parsed_if_malformed_ones_are_left_out(
    tmp_path: Path, name: str, text: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    source = open_source(str(path), skip_damaged=True)
    assert (source.count, source.damaged) == (ROWS - 1, 1)
    key = "label" if name == "a.svm" else "a"
    expected = [i for i in range(ROWS) if i != ODD]
    assert column(source.read(0, ROWS - 1), key) == expected
    assert column(source.read(ODD - 2, ODD + 2), key) == expected[ODD - 2 : ODD + 2]


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", csv("1,2.5,\n")), ("a.jsonl", jsonl('{"b": 2.5}\n'))]
)
def test_types_that_fit_all_records(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    source = open_source(str(path), skip_damaged=True)
    assert (source.count, source.damaged) == (ROWS, 0)
    assert column(source.read(ODD, ODD + 1), "b") == [2.5]
    assert column(source.read(0, 1), "b") == [0.0]


@pytest.mark.parametrize(
    ("name", "text", "nothing"),
    [("a.csv", csv("1,2,soon\n"), ""), ("a.jsonl", jsonl('{"c": "soon"}\n'), None)],
)
def test_a_column_without_values_in_the_sample_is_text(
    tmp_path: Path, name: str, text: bytes, nothing: str | None
) -> None:
    path = tmp_path / name
    path.write_bytes(text)
    source = open_source(str(path))
    assert source.metadata.column_types == ("int64", "int64", "string")
    assert column(source.read(ODD - 1, ODD + 2), "c") == [nothing, "soon", nothing]


def test_a_field_that_the_sample_lacks_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl('{"a": 7, "rare": {"x": 1}}\n'))
    source = open_source(str(path))
    with caplog.at_level(logging.WARNING):
        assert column(source.read(ODD - 1, ODD + 2), "a") == [ODD - 1, 7, ODD + 1]
        source.read(ODD, ODD + 1)
    (warning,) = caplog.records
    assert warning.getMessage() == (
        f"{path}: fields that no record of the sample has are left out; the columns are a, b, c; "
        "to have other fields, write them in the first record"
    )
    assert source.metadata.column_names == ("a", "b", "c")


def test_a_small_file_is_parsed_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 1 << 20)
    for name, text, _ in CASES:
        path = tmp_path / name
        path.write_bytes(text)
        if b"2.5" in text:  # has a common type with the others
            assert column(open_source(str(path)).read(ODD, ODD + 1), "b") == [2.5]
            continue
        with pytest.raises(DataError):
            open_source(str(path))


@pytest.mark.parametrize("block", [40, 1 << 20])
@pytest.mark.parametrize(
    ("name", "head", "good", "bad"),
    [
        ("a.csv", "a,b\n", '{i},"x,\n"\n', "{i}\n\n"),
        ("b.csv", "a,b\n", "{i},x\n", "{i},x,y\n"),
        ("a.jsonl", "", '{{"a": {i}}}\n', '{{"a": {i}, "b": [\n'),
        ("b.jsonl", "", '{{"a": {i}}}\n', '{{"a": tru}}\n'),
        ("a.svm", "# x\n", "{i} 1:2\n", "{i} 1:x\n# y\n"),
    ],
)
def test_many_malformed_records_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: str, good: str, bad: str,
    block: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(BlockSource, "block_bytes", block)
    path = tmp_path / name
    rows = [(good if i % 3 else bad).format(i=i) for i in range(900)]
    path.write_text(head + "".join(rows))
    source = open_source(str(path), skip_damaged=True)
    assert (source.count, source.damaged) == (600, 300)
    key = "label" if name == "a.svm" else "a"
    expected = [i for i in range(900) if i % 3]
    assert column(source.read(0, 600), key) == expected
    assert column(source.read(17, 33), key) == expected[17:33]


def test_a_block_of_malformed_records_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 30 + "1\n" * 300 + "1,2\n" + "1\n1,2\n")
    source = open_source(str(path), skip_damaged=True)
    assert (source.count, source.damaged) == (32, 301)
    assert len(source.read(0, 32)) == 32


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [
        (b"", True, ([], 0, None)),
        (b"a", False, ([], 0, None)),
        (b"a", True, ([b"a"], 1, None)),
        (b"a\r", False, ([], 0, None)),
        (b"a\r", True, ([b"a\r"], 2, None)),
        (b"a\rb\r\n\n\r\nc\n", False, ([b"a\r", b"b\r\n", b"c\n"], 10, None)),
        (b'"a\n""",b\nc', False, ([b'"a\n""",b\n'], 9, None)),
        (b'a\n"b""\n', True, ([b"a\n"], 2, 2)),
        (b'a\n"b"",', True, ([b"a\n"], 2, 2)),
        (b'5" pipe,"x\ny"\n6"\n', True, ([b'5" pipe,"x\ny"\n', b'6"\n'], 17, None)),
        (b'"a"b"c\n"d\ne"\n', True, ([b'"a"b"c\n', b'"d\ne"\n'], 13, None)),
    ],
)
def test_rows_of_csv(
    text: bytes, whole: bool, expected: tuple[list[bytes], int, int | None]
) -> None:
    rows = find_rows(text, whole, delimiter=b",")
    found = [text[start:end] for start, end in zip(rows.starts, rows.ends, strict=True)]
    assert (found, rows.end, rows.unclosed) == expected


def test_rows_of_lines() -> None:
    text = b'# a\n\n"1\r 2\n \t\n # b\n 3#\n4'
    rows = find_rows(text, True, comment=b"#")
    found = [text[start:end] for start, end in zip(rows.starts, rows.ends, strict=True)]
    assert found == [b'"1\r 2\n', b" 3#\n", b"4"]
    spans = [rows.span(i, i + 1) for i in range(3)]
    assert spans == [(0, 19), (19, 23), (23, 24)]
    assert len(find_rows(text, False)) == 4
