"""Compressed files: unpacked once per machine and content."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import pyarrow as pa
import pytest
from pyarrow import parquet

from torch_edl.data.sources import open_source, unpacking
from torch_edl.errors import DataError

TEXT = b"n\n" + b"".join(b"%d\n" % n for n in range(1000))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "cache" / "unpacked"


@pytest.fixture
def packed(tmp_path: Path) -> str:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(TEXT))
    return str(path)


def kept(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if not path.name.startswith(".")]


@pytest.mark.parametrize(
    ("suffix", "raw"),
    [
        (".gz", gzip.compress(TEXT)),
        (".gz", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        (".zst", bytes(cramjam.zstd.compress(TEXT))),
        (".ZST", bytes(cramjam.zstd.compress(TEXT[:9])) + bytes(cramjam.zstd.compress(TEXT[9:]))),
    ],
)
def test_members_and_frames_are_one_content(
    tmp_path: Path, home: Path, suffix: str, raw: bytes
) -> None:
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(raw)
    source = open_source(str(path))
    assert source.stamp[0] == len(raw)  # type: ignore[attr-defined]
    assert source.read(998, 1000)["n"].to_pylist() == [998, 999]  # type: ignore[call-overload]
    assert [found.read_bytes() for found in kept(home)] == [TEXT]


def test_a_library_opens_what_is_unpacked(tmp_path: Path) -> None:
    whole = pa.table({"n": list(range(100))})
    parquet.write_table(whole, tmp_path / "a.parquet")
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    assert open_source(str(path)).read(5, 50) == whole.slice(5, 45)


def test_several_readers_unpack_once(
    packed: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    whole = unpacking._pieces
    monkeypatch.setattr(unpacking, "_pieces", lambda *words: done.append(1) or whole(*words))
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: open_source(packed).count, range(8)))
    assert (counts, done) == ([1000] * 8, [1])


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_a_stream_that_is_cut_off_is_an_error(tmp_path: Path, home: Path, codec: str) -> None:
    raw = gzip.compress(TEXT) if codec == "gz" else bytes(cramjam.zstd.compress(TEXT))
    path = tmp_path / f"a.csv.{codec}"
    for end in range(1, len(raw), 97):
        path.write_bytes(raw[:end])
        with pytest.raises(DataError, match=r"a.csv.*: the \w+ stream is damaged"):
            open_source(str(path))
    assert kept(home) == []


def test_what_is_unpacked_is_bounded(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES", 2 * len(TEXT))
    sources = []
    for number in range(4):
        path = tmp_path / f"{number}.csv.gz"
        path.write_bytes(gzip.compress(TEXT))
        sources.append(open_source(str(path)))
        assert len(kept(home)) <= 2
    # One that went is unpacked again.
    for source in sources:
        assert source.read(5, 6)["n"].to_pylist() == [5]  # type: ignore[call-overload]


def test_no_room_names_the_folder(packed: str, home: Path) -> None:
    home.parent.mkdir(parents=True)
    home.write_text("a file in its place")
    with pytest.raises(DataError, match=r"cannot be unpacked into .*; set TORCH_EDL_HOME"):
        open_source(packed)


@pytest.mark.parametrize("damage", ["empty", "short", "another"])
def test_what_a_machine_lost_with_its_power_is_unpacked_again(
    packed: str, home: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    assert open_source(packed).count == 1000
    (place,) = kept(home)
    content = {"empty": b"", "short": TEXT[:-100], "another": bytes(len(TEXT))}[damage]
    place.write_bytes(content)
    if damage == "another":  # which only the next start of the machine can bring
        monkeypatch.setattr(unpacking, "_boot", lambda: "the next")
    assert open_source(packed).count == 1000
    assert place.read_bytes() == TEXT


def test_a_digest_that_is_right_is_compared_once_in_a_life_of_the_machine(
    packed: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_source(packed).count == 1000
    monkeypatch.setattr(unpacking, "_pieces", None)  # nothing is unpacked from now on
    monkeypatch.setattr(unpacking, "_boot", lambda: "the next")
    compared = []
    compare = unpacking._Content.is_intact
    monkeypatch.setattr(
        unpacking._Content, "is_intact", lambda *words: compared.append(1) or compare(*words)
    )
    assert [open_source(packed).count for _ in range(3)] == [1000] * 3
    assert compared == [1]


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"size": 3}', b"\xff"])
def test_without_a_note_nothing_is_trusted(packed: str, home: Path, note: bytes) -> None:
    assert open_source(packed).count == 1000
    (place,) = kept(home)
    (lock,) = home.glob(".*.lock")
    lock.write_bytes(note)
    place.write_bytes(TEXT[:100])
    assert open_source(packed).count == 1000
