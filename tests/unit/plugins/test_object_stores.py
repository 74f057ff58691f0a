"""Objects behind URLs, in a store that is in memory: what is asked, repeated and said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from torch_edl.data.sources import expand, open_source
from torch_edl.data.sources.files import blocks
from torch_edl.data.sources.files.csv import CsvSource
from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.object_stores import attempts, objects


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(CsvSource, "block_bytes", 150)
    store = fsspec.filesystem("memory").store
    yield
    store.clear()


def put(url: str, content: bytes) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(content)
    return url


def numbers(count: int, first: int = 0) -> bytes:
    return b"n\n" + b"".join(b"%07d\n" % n for n in range(first, first + count))


def test_a_store_that_names_no_content_is_asked_once_for_each_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = put("memory://data/a.csv", numbers(10_000))
    source = open_source(url)
    system = fsspec.filesystem("memory")
    read: list[tuple[int, int]] = []
    whole = system.cat_file

    def cat_file(path: str, start: int, end: int) -> bytes:
        read.append((start, end))
        return bytes(whole(path, start=start, end=end))

    asked: list[str] = []
    about = system.info

    def info(path: str) -> dict[str, object]:
        asked.append(path)
        return dict(about(path))

    monkeypatch.setattr(system, "cat_file", cat_file)
    monkeypatch.setattr(system, "info", info)
    assert source.read(500, 600)["n"].to_pylist() == list(range(500, 600))
    source.read(500, 600)
    assert len(read) == len(asked) == 1
    first, last = read[0]
    assert first <= 2 + 500 * 8 < 2 + 600 * 8 <= last < 2 + 700 * 8


def test_the_index_of_an_object_is_cached_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "MIN_CACHED_BYTES", 0)
    url = put("memory://data/a.csv", numbers(100))
    assert open_source(url).count == 100
    assert [path.parent.name for path in tmp_path.rglob("*.edl-index")] == ["cache"]
    assert fsspec.filesystem("memory").find("/data") == ["/data/a.csv"]
    monkeypatch.setattr(objects.ObjectBytes, "read_at", None)
    assert open_source(url).count == 100


def test_a_url_of_this_machine_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(numbers(3))
    assert expand([f"file://{tmp_path}/*.csv"]) == [str(tmp_path / "a.csv")]
    assert open_source(f"file://{tmp_path}/a.csv").name == str(tmp_path / "a.csv")


def test_the_host_of_a_url_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    system = type(fsspec.filesystem("webhdfs", host="name-node", port=9870))
    monkeypatch.setattr(system, "isdir", lambda self, path: True)
    monkeypatch.setattr(system, "find", lambda self, path: [f"{path}/a.csv"])
    assert expand(["webhdfs://name-node:9870/data"]) == ["webhdfs://name-node:9870/data/a.csv"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # What fsspec has imported, it does not import again.
    monkeypatch.setattr(sys.modules["fsspec.registry"], "_registry", {})
    monkeypatch.setattr(sys.modules["fsspec.registry"], "registry", {})
    with pytest.raises(UsageError, match=r"gs://data/a.csv: .* pip install 'torch-edl\[gcs\]'"):
        expand(["gs://data/a.csv"])


def test_a_request_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(attempts.time, "sleep", paused.append)
    url = put("memory://data/a.csv", numbers(3))
    system = fsspec.filesystem("memory")
    whole, failures = system.cat_file, [TimeoutError("late"), ConnectionResetError("gone")]

    def cat_file(path: str, start: int, end: int) -> bytes:
        if failures:
            raise failures.pop()
        return bytes(whole(path, start=start, end=end))

    monkeypatch.setattr(system, "cat_file", cat_file)
    assert open_source(url).count == 3
    assert paused == [0.2, 1.0]
    failures += [TimeoutError("late")] * 4
    with pytest.raises(DataError, match=r"a.csv: cannot be read: TimeoutError: late"):
        open_source(url)


def test_a_package_that_has_tried_for_long_by_itself_is_asked_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """botocore and s3fs take 30 s for one attempt at a store that closes every connection."""
    now, asked, paused = 0.0, 0, []

    def closed() -> None:
        nonlocal now, asked
        now, asked = now + 11.0, asked + 1
        raise ConnectionError("Connection was closed before we received a valid response")

    monkeypatch.setattr(attempts.time, "sleep", paused.append)
    monkeypatch.setattr(attempts.time, "monotonic", lambda: now)
    with pytest.raises(DataError, match=r"cannot be read: ConnectionError: .*; tried for 33 s"):
        attempts.tried("s3://data/a.csv", closed)
    assert (asked, paused) == (3, [0.2, 1.0])
