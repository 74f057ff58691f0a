"""What every source promises, run against every one of them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.source_cases import (
    COUNT,
    DATABASES,
    FILES,
    MEMORY,
    PER_BLOCK,
    Case,
    cut_small,
    everything,
    opened,
    rows,
    written,
)
from tests.waiting import HANG_S
from torch_edl.data.sources import Source, concat, open_source, take
from torch_edl.data.sources.files import blocks
from torch_edl.errors import DataError

every_file = pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
every_source = pytest.mark.parametrize(
    "case", FILES + MEMORY + DATABASES, ids=lambda case: case.name
)


@pytest.fixture(autouse=True)
def small_blocks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    cut_small(case, monkeypatch, tmp_path / "home")
    if case is not None and case.name == "sql-postgresql":
        request.getfixturevalue("postgres")
    if case is not None and case.name in ("kafka", "maxcompute"):
        request.getfixturevalue(case.name)


@every_source
def test_name_count_and_columns(case: Case, tmp_path: Path) -> None:
    records = case.make(COUNT, 0)
    source = opened(case, tmp_path, records)
    assert isinstance(source, Source)
    assert source.count == COUNT
    assert source.damaged == 0
    assert source.metadata.path == source.name
    if case.url is not None:
        assert source.name.startswith(case.url(tmp_path / "data"))
        assert open_source(source.name).name == source.name
    else:
        assert source.name == ("memory" if case in MEMORY else str(tmp_path / f"data{case.suffix}"))
    if isinstance(records, list):
        assert source.metadata.column_names == source.metadata.column_types == ()
    else:
        assert source.metadata.column_names == tuple(records.schema.names)
        assert source.metadata.column_types == tuple(map(str, records.schema.types))


@every_source
def test_every_range_is_the_slice_of_the_whole(case: Case, tmp_path: Path) -> None:
    records = case.make(COUNT, 0)
    expected = rows(records)
    source = opened(case, tmp_path, records)
    # Each read of a database is a call of another process.
    for start in range(0, COUNT + 1, 3 if case in DATABASES else 1):
        # Short ranges, the rest of the source, and every fourth length.
        for end in {*range(start, COUNT + 1, 4), *range(start, min(start + 3, COUNT)), COUNT}:
            got = source.read(start, end)
            assert type(got) is type(records)
            assert rows(got) == expected[start:end]
            if isinstance(got, pa.Table):
                assert got.schema.equals(records.schema)


@every_source
@pytest.mark.parametrize(("start", "end"), [(-1, 3), (0, COUNT + 1), (5, 4), (COUNT + 1,) * 2])
def test_a_range_outside_is_refused(case: Case, tmp_path: Path, start: int, end: int) -> None:
    source = opened(case, tmp_path, case.make(COUNT, 0))
    with pytest.raises(DataError, match=f"asked for records {start} to {end}"):
        source.read(start, end)


@every_source
@pytest.mark.parametrize("count", [0, 1, PER_BLOCK, PER_BLOCK + 1])
def test_few_records_and_none(case: Case, tmp_path: Path, count: int) -> None:
    records = case.make(count, 0)
    source = opened(case, tmp_path, records)
    assert source.count == count
    assert everything(source) == rows(records)


@every_file
def test_a_file_of_no_bytes_has_no_records(case: Case, tmp_path: Path) -> None:
    path = tmp_path / f"data{case.suffix}"
    path.touch()
    for skip in (False, True):
        source = open_source(str(path), skip_damaged=skip)
        assert (source.count, source.damaged) == (0, 0)
        assert everything(source) == []


@every_source
def test_records_are_permuted_and_joined_alike(case: Case, tmp_path: Path) -> None:
    source = opened(case, tmp_path, case.make(COUNT, 0))
    expected = everything(source)
    order = random.Random(1).sample(range(COUNT), COUNT)
    part = source.read(3, 33)
    assert rows(take(part, [7, 0, 29])) == [expected[10], expected[3], expected[32]]
    whole = concat([source.read(20, 40), source.read(0, 0), source.read(0, 20)])
    again = take(whole, [(i + 20) % COUNT for i in order])
    assert rows(again) == [expected[i] for i in order]


@every_source
def test_threads_share_a_source(case: Case, tmp_path: Path) -> None:
    source = opened(case, tmp_path, case.make(COUNT, 0))
    expected = rows(case.make(COUNT, 0))
    together = threading.Barrier(8)

    def read(seed: int) -> int:
        chance = random.Random(seed)
        together.wait(timeout=HANG_S)
        for _ in range(40):
            start, end = sorted((chance.randint(0, COUNT), chance.randint(0, COUNT)))
            assert rows(source.read(start, end)) == expected[start:end]
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == list(range(8))


# ---- the cached index ----


@pytest.fixture
def caching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are cached too."""
    monkeypatch.setattr(blocks, "MIN_CACHED_BYTES", 0)


cached = pytest.mark.usefixtures("caching")


def spoil_unseen(path: Path, status: os.stat_result) -> None:
    """Makes the content useless in a way that size, time and inode do not show."""
    with open(path, "r+b") as file:
        file.write(b"\xff" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def caches(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.edl-index"))


# What is unpacked is a cache of its own.
CACHED = [
    case
    for case in FILES
    if not case.name.startswith("parquet") and not case.suffix.endswith((".gz", ".zst"))
]
every_cached = pytest.mark.parametrize("case", CACHED, ids=lambda case: case.name)


@cached
@every_cached
def test_the_index_is_cached_beside_the_data(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path, case.make(COUNT, 0))
    before = open_source(str(path))
    assert [found.parent for found in caches(tmp_path)] == [tmp_path]
    assert caches(tmp_path)[0].name.startswith(".")
    spoil_unseen(path, path.stat())
    again = open_source(str(path))  # A scan of this would fail.
    assert again.count == COUNT
    assert again.metadata == before.metadata
    caches(tmp_path)[0].unlink()
    with pytest.raises(DataError):
        open_source(str(path))


@cached
@every_cached
def test_without_a_writable_folder_it_is_cached_at_home(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path, case.make(COUNT, 0))
    open_source(str(path))
    # A folder in its place: this cannot be written even by root.
    place = caches(tmp_path)[0]
    place.unlink()
    place.mkdir()
    open_source(str(path))
    assert [found.parent for found in caches(tmp_path / "home")] == [tmp_path / "home" / "cache"]
    spoil_unseen(path, path.stat())
    assert open_source(str(path)).count == COUNT


@cached
@every_file
def test_another_content_is_scanned_again(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path, case.make(COUNT, 0))
    old = open_source(str(path))
    case.write(path, case.make(COUNT - 10, 5))
    new = open_source(str(path))
    assert everything(new) == rows(case.make(COUNT - 10, 5))
    # The source that was open does not mix the two.
    with pytest.raises(DataError, match="changed while the job was using it"):
        old.read(0, 1)


@cached
@every_cached
def test_a_damaged_cache_is_made_anew(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path, case.make(COUNT, 0))
    open_source(str(path))
    place = caches(tmp_path)[0]
    good = place.read_bytes()
    expected = rows(case.make(COUNT, 0))
    for at in range(0, len(good), max(5, len(good) // 30)):
        place.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
        assert everything(open_source(str(path))) == expected
        place.write_bytes(good[:at])
        assert everything(open_source(str(path))) == expected
    assert place.read_bytes() == good


@cached
@every_cached
def test_the_index_that_skips_damage_is_another_one(case: Case, tmp_path: Path) -> None:
    path = written(case, tmp_path, case.make(COUNT, 0))
    for _ in range(2):
        assert open_source(str(path)).count == COUNT
        assert open_source(str(path), skip_damaged=True).count == COUNT
    assert len(caches(tmp_path)) == 2


def test_small_files_leave_no_cache_behind(tmp_path: Path) -> None:
    for case in FILES:
        open_source(str(written(case, tmp_path, case.make(COUNT, 0))), skip_damaged=True)
    assert caches(tmp_path) == []


# ---- damage ----


def damage(case: Case, raw: bytes, data: st.DataObject) -> bytes:
    """The file with some bytes flipped, overwritten, cut off, taken out or put in."""
    kind = data.draw(st.sampled_from(["flip", "flip", "flip", "cut", "fill", "remove", "insert"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "flip":
        return raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    if kind == "cut":
        return raw[:at]
    length = data.draw(st.integers(1, 40))
    if kind == "fill":
        value = data.draw(st.sampled_from([0, 0xFF]))
        return raw[:at] + (bytes([value]) * length)[: len(raw) - at] + raw[at + length :]
    if kind == "remove":
        return raw[:at] + raw[at + length :]
    return raw[:at] + data.draw(st.binary(min_size=length, max_size=length)) + raw[at:]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], bytes]:
    folder = tmp_path_factory.mktemp("whole")
    known: dict[str, bytes] = {}

    def of(case: Case) -> bytes:
        if case.name not in known:
            known[case.name] = written(case, folder, case.make(COUNT, 0)).read_bytes()
        return known[case.name]

    return of


def is_in_order(part: list[object], whole: list[object]) -> bool:
    rest = iter(whole)
    return all(any(record == other for other in rest) for record in part)


@every_file
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_gives_the_right_records_or_an_error(
    case: Case, files: Callable[[Case], bytes], tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / f"damaged{case.suffix}"
    path.write_bytes(damage(case, files(case), data))
    expected = rows(case.make(COUNT, 0))
    for skip in (False, True):
        got, error = read_damaged(path, skip)
        if error is not None:
            assert str(path) in str(error)
            size = len(case.content(files(case))) + 40
            assert error.offset is None or 0 <= error.offset <= size
            # Nothing can be left out of a table whose header or footer is gone.
            assert not (skip and case.checked)
        elif case.checked:  # Whole chunks that are gone leave no trace in these formats.
            assert is_in_order(got, expected)


def read_damaged(path: Path, skip: bool) -> tuple[list[object], DataError | None]:
    try:
        return everything(open_source(str(path), skip_damaged=skip)), None
    except DataError as error:
        return [], error


@pytest.mark.parametrize("case", [c for c in FILES if c.checked], ids=lambda case: case.name)
def test_every_single_byte_matters(
    case: Case, files: Callable[[Case], bytes], tmp_path: Path
) -> None:
    raw = files(case)
    path = tmp_path / f"damaged{case.suffix}"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        with pytest.raises(DataError):
            everything(open_source(str(path)))
