"""What every format promises behind a URL: on a real S3-compatible server, and in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.contract.source_cases import COUNT, FILES, Case, cut_small, rows, written
from tests.gcs_server import GcsServer
from tests.s3_server import S3Server
from torch_edl.data.sources import expand, open_source
from torch_edl.data.sources.files import index
from torch_edl.data.sources.storage import objects
from torch_edl.data.task_space import Shard
from torch_edl.errors import DataError, UsageError

every_file = pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def small_blocks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    cut_small(case, monkeypatch, tmp_path / "home")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir("data")
        yield server
    server.kill()


@pytest.fixture
def memory() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


def put(url: str, content: bytes) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(content)
    return url


@pytest.fixture(scope="module")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    server = GcsServer(tmp_path_factory.mktemp("gcs"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("gs").mkdir("data")
        yield
    fsspec.filesystem("gs").clear_instance_cache()
    server.kill()


@every_file
def test_ranges_of_an_object_of_s3(case: Case, s3: S3Server, tmp_path: Path) -> None:
    check_ranges("s3://data", case, tmp_path)


@every_file
def test_ranges_of_an_object_of_google(case: Case, gcs: None, tmp_path: Path) -> None:
    check_ranges("gs://data", case, tmp_path)


def check_ranges(bucket: str, case: Case, tmp_path: Path) -> None:
    """The folder has a number sign in its name, which begins no fragment here."""
    records = case.make(COUNT, 0)
    expected = rows(records)
    local = written(case, tmp_path, records)
    url = put(f"{bucket}/{case.name}#1/part{case.suffix}", local.read_bytes())
    assert expand([f"{bucket}/{case.name}#1/*"]) == [url]
    source = open_source(url)
    assert (source.name, source.metadata.path, source.count) == (url, url, COUNT)
    assert source.metadata.column_names == open_source(str(local)).metadata.column_names
    for start, end in [(0, 3), (11, 12), (5, 33), (0, COUNT)]:
        assert rows(source.read(start, end)) == expected[start:end]
    # Another worker counts the same.
    assert Shard.of(open_source(url)) == Shard.of(source)


@every_file
def test_ranges_of_an_object_in_memory(
    case: Case, memory: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AHEAD_BYTES", 64)
    records = case.make(COUNT, 0)
    local = written(case, tmp_path, records)
    source = open_source(put(f"memory://data/part{case.suffix}", local.read_bytes()))
    for start, end in [(0, 3), (11, 12), (5, 33), (0, COUNT)]:
        assert rows(source.read(start, end)) == rows(records)[start:end]


def numbers(count: int, first: int = 0) -> bytes:
    return b"n\n" + b"".join(b"%07d\n" % n for n in range(first, first + count))


def test_a_task_reads_its_bytes_and_asks_once_whether_they_are_the_same(
    memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put("memory://data/a.csv", numbers(10_000))
    source = open_source(url)
    system = fsspec.filesystem("memory")
    read: list[tuple[int, int]] = []
    whole = system.cat_file

    def cat_file(path: str, start: int, end: int) -> bytes:
        read.append((start, end))
        return bytes(whole(path, start=start, end=end))

    monkeypatch.setattr(system, "cat_file", cat_file)
    assert source.read(500, 600)["n"].to_pylist() == list(range(500, 600))
    source.read(500, 600)
    assert len(read) == 1
    first, last = read[0]
    assert first <= 2 + 500 * 8 < 2 + 600 * 8 <= last < 2 + 700 * 8


def test_the_index_of_an_object_is_cached_at_home(
    memory: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MIN_CACHED_BYTES", 0)
    url = put("memory://data/a.csv", numbers(100))
    assert open_source(url).count == 100
    assert [path.parent.name for path in tmp_path.rglob("*.edl-index")] == ["cache"]
    assert fsspec.filesystem("memory").find("/data") == ["/data/a.csv"]
    monkeypatch.setattr(objects.ObjectBytes, "read_at", None)
    assert open_source(url).count == 100


def test_an_object_that_is_replaced_is_noticed(s3: S3Server) -> None:
    url = put("s3://data/replaced.csv", numbers(100))
    source = open_source(url)
    put(url, numbers(100, first=900))  # of the same size, within the same second
    with pytest.raises(DataError, match=r"replaced.csv: changed while the job was using it"):
        source.read(0, 10)
    assert open_source(url).read(0, 1)["n"].to_pylist() == [900]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("s3://data/tree", ["a.csv", "day=1/b.csv", "day=2/c.csv"]),
        ("s3://data/tree/", ["a.csv", "day=1/b.csv", "day=2/c.csv"]),
        ("s3://data/tree/*", ["a.csv", "day=1/b.csv", "day=2/c.csv"]),
        ("s3://data/tree/*.csv", ["a.csv"]),
        ("s3://data/tree/**/*.csv", ["_tmp/d.csv", "a.csv", "day=1/b.csv", "day=2/c.csv"]),
        ("s3://data/tree/day=[2-9]", ["day=2/c.csv"]),
        ("s3://data/tree/day=1/_*", ["day=1/_SUCCESS"]),
        ("S3://data/tree/a.csv", ["a.csv"]),
    ],
)
def test_what_a_url_names(s3: S3Server, pattern: str, expected: list[str]) -> None:
    for name in ("a.csv", "day=1/b.csv", "day=1/_SUCCESS", "day=2/c.csv", "_tmp/d.csv"):
        put(f"s3://data/tree/{name}", b"n\n1\n")
    assert expand([pattern]) == [f"s3://data/tree/{name}" for name in expected]


def test_a_url_of_this_machine_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(numbers(3))
    assert expand([f"file://{tmp_path}/*.csv"]) == [str(tmp_path / "a.csv")]
    assert open_source(f"file://{tmp_path}/a.csv").name == str(tmp_path / "a.csv")


def test_the_host_of_a_url_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    system = type(fsspec.filesystem("webhdfs", host="name-node", port=9870))
    monkeypatch.setattr(system, "isdir", lambda self, path: True)
    monkeypatch.setattr(system, "find", lambda self, path: [f"{path}/a.csv"])
    assert expand(["webhdfs://name-node:9870/data"]) == ["webhdfs://name-node:9870/data/a.csv"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://data/none.csv", "s3://data/none.csv: no object matches"),
        ("s3://nothing/*.csv", r"s3://nothing/\*.csv: no object matches"),
        ("nothing://x", "nothing://x: no package reads nothing://"),
        ("zip://a.csv::s3://data/a.zip", "URLs within URLs"),
        ("s3://me:secret@data/a.csv", "s3://me:...@data/a.csv: holds a password"),
    ],
)
def test_urls_that_cannot_be_read(s3: S3Server, url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        expand([url])
    assert "secret" not in str(raised.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # What fsspec has imported, it does not import again.
    monkeypatch.setattr(sys.modules["fsspec.registry"], "_registry", {})
    monkeypatch.setattr(sys.modules["fsspec.registry"], "registry", {})
    with pytest.raises(UsageError, match=r"gs://data/a.csv: .* pip install 'torch-edl\[gcs\]'"):
        expand(["gs://data/a.csv"])


def test_missing_credentials_are_named(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put("s3://data/denied.csv", numbers(3))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(DataError, match=r"denied.csv: cannot be read: .*[Cc]redentials"):
        open_source(url)
    fsspec.filesystem("s3").clear_instance_cache()


def test_a_denied_request_names_the_environment(
    memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*words: object, **named: object) -> bytes:
        raise PermissionError("Forbidden")

    url = put("memory://data/denied.csv", numbers(3))
    monkeypatch.setattr(fsspec.filesystem("memory"), "cat_file", denied)
    with pytest.raises(DataError, match=r"denied.csv: .*Forbidden.*come from the environment"):
        open_source(url)


def test_a_request_that_fails_is_repeated(
    memory: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(objects.time, "sleep", paused.append)
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
