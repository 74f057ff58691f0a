"""CSV: rows are where pyarrow's parser sees them, and types hold over the whole file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import csv

from torch_edl.data.sources.files import lines as module
from torch_edl.data.sources.files.csv import CsvSource
from torch_edl.errors import DataError


def opened(path: Path, text: bytes, *, block: int = 8, skip_damaged: bool = False) -> CsvSource:
    """The source of a file with this content, cut into tiny blocks."""
    path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CsvSource, "block_bytes", block)
        return CsvSource(str(path), skip_damaged=skip_damaged)


def types_of(text: str, tmp_path: Path) -> dict[str, str]:
    source = opened(tmp_path / "t.csv", text.encode())
    source.read(0, source.count)
    return dict(zip(source.metadata.column_names, source.metadata.column_types, strict=True))


def test_every_range_has_the_types_of_the_whole_file(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i if i < 50 else i + 0.5},{'' if i < 60 else i}\n" for i in range(100))
    source = opened(tmp_path / "t.csv", b"a,b,c\n" + rows.encode())
    assert source.count == 100
    assert source.metadata.column_names == ("a", "b", "c")
    assert source.metadata.column_types == ("int64", "double", "int64")
    first, last = source.read(0, 3), source.read(97, 100)
    assert first.schema == last.schema == source.read(5, 5).schema
    assert first.to_pydict() == {"a": [0, 1, 2], "b": [0.0, 1.0, 2.0], "c": [None] * 3}
    assert last["b"].to_pylist() == [97.5, 98.5, 99.5]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "2.5"], "double"),
        (["2.5", "1"], "double"),
        (["1", "x"], "string"),
        (["", "7"], "int64"),
        (["", ""], "null"),
        (["true", "5"], "string"),
        (["2020-01-02", "2020-01-02 03:04:05"], "timestamp[s]"),
        (["2020-01-02 03:04:05.5", "2020-01-02"], "timestamp[ns]"),
        (["2020-01-02", "1.5"], "string"),
        (["10:11:12", "2020-01-02"], "string"),
        # These are no ids: floating-point numbers that are large.
        (["9223372036854775808", "1.5"], "double"),
        (["0.5", "9223372036854775808"], "double"),
        (["9223372036854775808", "1e3"], "double"),
        (["inf", "1"], "double"),
        (["1e30", "1"], "double"),
        (["9223372036854775807", "-9223372036854775808"], "int64"),
        (["9223372036854775808", "x"], "string"),
    ],
)
def test_types_of_different_blocks_are_joined(
    tmp_path: Path, values: list[str], expected: str
) -> None:
    filler = "padding that fills a block,"
    text = f"p,{'v'}\n" + "".join(f"{filler}{value}\n" for value in values)
    assert types_of(text, tmp_path)["v"] == expected


@pytest.mark.parametrize("block", [8, 1000])
@pytest.mark.parametrize("wide", ["9223372036854775808", "-9223372036854775809", "1" + "0" * 30])
def test_integers_that_do_not_fit_are_refused(tmp_path: Path, wide: str, block: int) -> None:
    rows = "".join(f"0.5,{n}\n" for n in range(7)) + f"1,\n2,{wide}\n3,5\n"
    with pytest.raises(DataError, match=rf"t.csv: column 'id': {wide} does not fit 64 bits"):
        opened(tmp_path / "t.csv", f"x,id\n{rows}".encode(), block=block)


def test_text_that_is_not_utf8_is_bytes_everywhere(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv", b"a,b\nplain text,1\n\xff\xfe,2\n")
    assert source.read(0, 2)["a"].to_pylist() == [b"plain text", b"\xff\xfe"]


def test_ragged_rows_that_are_not_utf8(tmp_path: Path) -> None:
    text = b"a,b\n1,x\n\xff,2,3\n4,\xfe\n5\n6,y\n"
    with pytest.raises(DataError, match="a row of 3 fields") as caught:
        opened(tmp_path / "t.csv", text, block=100)
    assert caught.value.offset == text.index(b"\xff")
    for block in (1, 100):
        source = opened(tmp_path / "t.csv", text, block=block, skip_damaged=True)
        assert (source.count, source.damaged) == (3, 2)
        assert source.read(0, 3)["a"].to_pylist() == [1, 4, 6]
        assert source.read(0, 3)["b"].to_pylist() == [b"x", b"\xfe", b"y"]
    assert opened(tmp_path / "t.csv", b"a,b\n\xff\n", skip_damaged=True).count == 0


def test_newlines_delimiters_and_quotes_within_quotes_split_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    values = [f'a "{i}"\n,\r\n"",{"x" * (i % 30)}' for i in range(60)]
    out.write('"the\nid",text\r\n')
    for i, value in enumerate(values):
        escaped = value.replace('"', '""')
        out.write(f'{i},"{escaped}"\r\n')
    source = opened(tmp_path / "t.csv", out.getvalue().encode())
    assert source.metadata.column_names == ("the\nid", "text")
    assert source.count == 60
    for start in range(60):
        assert source.read(start, start + 1).to_pylist() == [
            {"the\nid": start, "text": values[start]}
        ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("final", [True, False])
def test_ends_of_rows(tmp_path: Path, end: str, final: bool) -> None:
    text = end.join(["a,b", *(f"{i},x" for i in range(20))]) + (end if final else "")
    source = opened(tmp_path / "t.csv", text.encode())
    assert source.read(0, source.count)["a"].to_pylist() == list(range(20))


def test_tabs_separate_the_columns_of_a_tsv(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.tsv", b'a\tb\n1,5\t"x\ty"\n')
    assert source.read(0, 1).to_pylist() == [{"a": "1,5", "b": "x\ty"}]


@pytest.mark.parametrize("text", [b"", b"\n\n", b"a,b", b"a,b\n", b"\n\na,b\n\n", b"\xef\xbb\xbf"])
def test_no_rows(tmp_path: Path, text: bytes) -> None:
    source = opened(tmp_path / "t.csv", text)
    assert source.count == 0
    names = ("a", "b") if b"a" in text else ()
    assert source.metadata.column_names == names
    assert source.read(0, 0).num_rows == 0


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    source = opened(tmp_path / "t.csv", b'\xef\xbb\xbf"a",b\n1,2\n')
    assert source.metadata.column_names == ("a", "b")


def test_a_ragged_row_is_named_with_its_byte(tmp_path: Path) -> None:
    good = b"a,b\n" + b"1,2\n" * 10
    with pytest.raises(DataError, match="a row of 3 fields, the header has 2: '7,8,9'") as caught:
        opened(tmp_path / "t.csv", good + b"7,8,9\n" + b"3,4\n" * 10)
    assert caught.value.path == str(tmp_path / "t.csv")
    assert caught.value.offset == len(good)


def test_ragged_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = b"".join(b"%d,x\n" % i if i % 5 else b"%d\n" % i for i in range(100))
    source = opened(tmp_path / "t.csv", b"a,b\n" + rows, skip_damaged=True)
    assert (source.count, source.damaged) == (80, 20)
    expected = [i for i in range(100) if i % 5]
    assert source.read(0, 80)["a"].to_pylist() == expected
    assert source.read(11, 30)["a"].to_pylist() == expected[11:30]


def test_a_quote_that_nothing_closes_is_damage_where_it_opens(tmp_path: Path) -> None:
    good = b"a,b\n" + b"1,2\n" * 10
    with pytest.raises(DataError, match="a quoted field is not closed") as caught:
        opened(tmp_path / "t.csv", good + b'3,"4\n' + b"5,6\n" * 100)
    assert caught.value.offset == len(good) + 2
    source = opened(tmp_path / "t.csv", good + b'3,"4\n' + b"5,6\n" * 100, skip_damaged=True)
    assert (source.count, source.damaged) == (10, 1)


def test_a_row_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROW_BYTES", 64)
        with pytest.raises(DataError, match="longer than 64 bytes"):
            opened(tmp_path / "t.csv", b"a\n1\n" + b"x" * 1000 + b"\n2\n")
        with pytest.raises(DataError, match="no header"):
            opened(tmp_path / "t.csv", b"x" * 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b,a\n1,2,3\n", "column 'a' appears twice in the header"),
        (b"a,\xff\n1,2\n", "the header cannot be read"),
        (b'a,"b\n1,2\n', "a quoted name in the header is not closed"),
        (b"\x1f\x8b\x08\x00....", "is compressed"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "t.csv", text)


def without_open_row(text: bytes) -> bytes:
    """The text without its last row if a quote is still open in it; one byte after the other."""
    end, state, place = 0, "start", 0
    while place < len(text):
        byte = text[place : place + 1]
        place += 1
        if state == "quoted":
            if byte == b'"' and text[place : place + 1] == b'"':
                place += 1
            elif byte == b'"':
                state = "field"
        elif byte in (b"\r", b"\n"):
            end, state = place, "start"
        elif byte == b",":
            state = "start"
        else:
            state = "quoted" if byte == b'"' and state == "start" else "field"
    return text[:end] if state == "quoted" else text


def whole(text: bytes, types: dict[str, Any], skip: bool) -> pa.Table:
    def on_ragged(row: Any) -> str:
        return "skip" if skip else "error"

    return csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(use_threads=False, block_size=1 << 20),
        parse_options=csv.ParseOptions(newlines_in_values=True, invalid_row_handler=on_ragged),
        convert_options=csv.ConvertOptions(column_types=types),
    )


@example(text=b'"""",1\n', block=4, skip=False)
@example(text=b'a"b,"\n"\r\r\n1,2', block=1, skip=False)
@given(
    text=st.lists(
        st.sampled_from([b'"', b'""', b",", b",", b"\n", b"\n", b"\r\n", b"\r", b"a", b"1", b" "]),
        max_size=40,
    ).map(b"".join),
    block=st.integers(1, 12),
    skip=st.booleans(),
)
def test_rows_are_those_that_pyarrow_sees(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, block: int, skip: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    text = b"x,y\n" + text
    closed = without_open_row(text)
    try:
        source = opened(path, text, block=block, skip_damaged=skip)
    except DataError as error:
        assert not skip
        if closed != text and "not closed" in error.reason:
            return
        with pytest.raises(pa.ArrowInvalid):
            whole(closed, {}, skip)
        return
    assert skip or closed == text
    expected = whole(closed, {}, skip)
    got = source.read(0, source.count)
    assert len(got) == len(expected)
    for name in ("x", "y"):
        # Blocks that disagree make a string where the whole file might make a boolean.
        assert got[name].type in (expected[name].type, pa.string())
        if got[name].type == expected[name].type:
            assert got[name].to_pylist() == expected[name].to_pylist()
