"""What every format promises behind a URL: on a real S3-compatible server, and in memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.broken_link import BrokenLink
from tests.contract.source_cases import COUNT, FILES, Case, cut_small, rows, written
from tests.gcs_server import GcsServer
from tests.http_server import HttpServer
from tests.s3_server import S3Server
from torch_edl.data.sources import expand, open_source
from torch_edl.data.sources.data_file import DataFile
from torch_edl.data.task_space import Shard
from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.object_stores import attempts, objects

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


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    server = HttpServer(tmp_path_factory.mktemp("http"))
    yield server
    server.kill()


@pytest.mark.parametrize("store", ["s3", "gcs", "memory", "http"])
@every_file
def test_ranges_of_an_object(
    case: Case, store: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has a number sign in its name, which begins no fragment in a store."""
    place = request.getfixturevalue(store)
    records = case.make(COUNT, 0)
    expected = rows(records)
    local = written(case, tmp_path, records)
    name = f"{case.name}#1/part{case.suffix}"
    if store == "http":
        name = name.replace("#", "-")
        (place.files / name).parent.mkdir()
        (place.files / name).write_bytes(local.read_bytes())
        url = f"{place.url}/files/{name}"
    else:
        bucket = {"s3": "s3://data", "gcs": "gs://data", "memory": "memory://data"}[store]
        url = put(f"{bucket}/{name}", local.read_bytes())
    if store == "memory":
        monkeypatch.setattr(objects, "AHEAD_BYTES", 64)
    else:
        assert expand([f"{url.rpartition('/')[0]}/*"]) == [url]
    source = open_source(url)
    assert (source.name, source.metadata.path, source.count) == (url, url, COUNT)
    assert source.metadata.column_names == open_source(str(local)).metadata.column_names
    for start, end in [(0, 3), (11, 12), (5, 33), (0, COUNT)]:
        assert rows(source.read(start, end)) == expected[start:end]
    # Another worker counts the same.
    assert Shard.of(open_source(url)) == Shard.of(source)


def numbers(count: int, first: int = 0) -> bytes:
    return b"n\n" + b"".join(b"%07d\n" % n for n in range(first, first + count))


def test_a_task_is_a_request_for_its_bytes(s3: S3Server, http: HttpServer, tmp_path: Path) -> None:
    """The object is compared once, after its bytes were read."""
    parquet.write_table(pa.table({"n": range(60)}), tmp_path / "a.parquet", row_group_size=20)
    content = (tmp_path / "a.parquet").read_bytes()
    (http.files / "asked.parquet").write_bytes(content)
    url = put("s3://data/asked.parquet", content)
    for server, name in [(s3, url), (http, f"{http.url}/files/asked.parquet")]:
        before = len(server.requests())
        source = open_source(name)
        methods = [request.split()[0] for request in server.requests()[before:]]
        assert methods == ["HEAD", "GET", "HEAD"]
        for start in (20, 40, 0):
            before = len(server.requests())
            assert source.read(start, start + 20)["n"].to_pylist() == [*range(start, start + 20)]
            methods = [request.split()[0] for request in server.requests()[before:]]
            assert methods == ["GET", "HEAD"]


def test_an_object_that_is_replaced_is_noticed(s3: S3Server) -> None:
    url = put("s3://data/replaced.csv", numbers(100))
    source = open_source(url)
    put(url, numbers(100, first=900))  # of the same size, within the same second
    with pytest.raises(DataError, match=r"replaced.csv: changed while the job was using it"):
        source.read(0, 10)
    assert open_source(url).read(0, 1)["n"].to_pylist() == [900]


def test_an_object_that_is_another_one_while_it_is_read(s3: S3Server, http: HttpServer) -> None:
    first, other = numbers(100), numbers(100, first=900)
    for name in ("s3://data/raced.csv", f"{http.url}/files/raced.csv"):
        url = put("s3://data/raced.csv", first)
        (http.files / "raced.csv").write_bytes(first)
        file = DataFile(name)
        assert file.read_at(2, 8) == first[2:10]
        put(url, other)
        (http.files / "raced.csv").write_bytes(other)
        with pytest.raises(DataError, match=r"raced.csv: changed while the job was using it"):
            file.close()


def test_an_object_that_becomes_shorter(s3: S3Server, http: HttpServer) -> None:
    url = put("s3://data/shorter.csv", numbers(100))
    (http.files / "shorter.csv").write_bytes(numbers(100))
    files = [DataFile(url), DataFile(f"{http.url}/files/shorter.csv")]
    put(url, numbers(10))
    (http.files / "shorter.csv").write_bytes(numbers(10))
    for file in files:
        with pytest.raises(DataError, match=r"shorter.csv: changed while the job was using it"):
            file.read_at(500, 100)


def test_a_compressed_object_that_changes_before_it_is_unpacked(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put("s3://data/unpacked.csv.gz", gzip.compress(numbers(1000), 1, mtime=0))
    read_at = objects.ObjectBytes.read_at

    def late(self: objects.ObjectBytes, offset: int, size: int) -> bytes:
        put(url, gzip.compress(numbers(1000, first=5), 1, mtime=0))
        return read_at(self, offset, size)

    monkeypatch.setattr(objects.ObjectBytes, "read_at", late)
    with pytest.raises(DataError, match=r"unpacked.csv.gz: changed while the job was using it"):
        open_source(url)
    assert [path.name[0] for path in (tmp_path / "home").rglob("unpacked/*")] == ["."]  # the lock


def test_a_copy_on_this_machine_needs_no_request(s3: S3Server) -> None:
    """The unpacked file has the content that was counted, whatever the store has now."""
    url = put("s3://data/copied.csv.gz", gzip.compress(numbers(1000)))
    source = open_source(url)
    before = len(s3.requests())
    assert source.read(500, 502)["n"].to_pylist() == [500, 501]
    assert len(s3.requests()) == before


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


def test_missing_credentials_are_named(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put("s3://data/denied.csv", numbers(3))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.filesystem("s3").clear_instance_cache()
    with pytest.raises(DataError, match=r"denied.csv: cannot be read: .*[Cc]redentials"):
        open_source(url)
    fsspec.filesystem("s3").clear_instance_cache()


def test_credentials_that_are_renewed(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that is denied is an error; the next one finds what is in the file by then."""
    source = open_source(put("s3://data/renewed.csv", numbers(100)))
    renewed = {name.lower(): value for name, value in s3.make_user().items()}
    lines = [f"{name} = {value}" for name, value in renewed.items()]
    for name in renewed:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    (tmp_path / "keys").write_text("[default]\n" + "\n".join(f"{name} = old" for name in renewed))
    fsspec.filesystem("s3").clear_instance_cache()
    s3.require_credentials(True)
    with pytest.raises(DataError, match=r"renewed.csv: .*access denied .*InvalidAccessKeyId"):
        source.read(0, 10)
    (tmp_path / "keys").write_text("[default]\n" + "\n".join(lines))
    assert source.read(0, 10)["n"].to_pylist() == list(range(10))
    s3.require_credentials(False)
    fsspec.filesystem("s3").clear_instance_cache()


def test_a_request_that_is_denied_or_is_no_range_over_http(http: HttpServer) -> None:
    (http.files / "a.csv").write_bytes(numbers(1000))
    with pytest.raises(DataError, match=r"denied/a.csv: cannot be read: access denied .*403"):
        open_source(f"{http.url}/denied/a.csv")
    with pytest.raises(DataError, match=r"whole/a.csv: .* the server gives all of it for a range"):
        DataFile(f"{http.url}/whole/a.csv").read_at(100, 10)


def test_connections_that_break_in_the_middle_of_an_answer(
    s3: S3Server, http: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3fs repeats a request five times by itself, and aiohttp never."""
    content = numbers(100_000)
    put("s3://data/broken.csv", content)
    (http.files / "broken.csv").write_bytes(content)
    for server in (s3, http):
        with BrokenLink(server.port, share=len(content) // 3) as link:
            paused: list[float] = []

            def pause(
                seconds: float, paused: list[float] = paused, link: BrokenLink = link
            ) -> None:
                paused.append(seconds)
                link.share = None if len(paused) == 2 else link.share

            monkeypatch.setattr(attempts.time, "sleep", pause)
            url = f"http://127.0.0.1:{link.port}/files/broken.csv"
            if server is s3:
                monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{link.port}")
                fsspec.filesystem("s3").clear_instance_cache()
                url = "s3://data/broken.csv"
            file = DataFile(url)
            assert file.read_at(0, file.size) == content
            assert paused == [0.2, 1.0]
            assert link.breaks == 2 * (5 if server is s3 else 1)
    with BrokenLink(http.port, share=len(content) // 3) as link:
        monkeypatch.setattr(attempts.time, "sleep", paused.append)
        file = DataFile(f"http://127.0.0.1:{link.port}/files/broken.csv")
        with pytest.raises(DataError, match=r"broken.csv: cannot be read: .*[Pp]ayload"):
            file.read_at(0, file.size)
        assert link.breaks == 4
    fsspec.filesystem("s3").clear_instance_cache()
