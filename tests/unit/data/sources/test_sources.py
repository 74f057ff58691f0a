"""Finding data: files, globs and folders, and the format of each file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.contract.source_cases import FILES
from tests.waiting import HANG_S
from torch_edl.data.sources import expand, open_source
from torch_edl.data.sources.opening import url_type
from torch_edl.errors import DataError, UsageError
from torch_edl.plugins.sql import dialects

FORMATS = (
    *("recordio", "tfrecord", "csv", "parquet"),
    *("arrow", "jsonl", "libsvm", "webdataset", "avro"),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "b.csv", "a.csv", "notes.txt", "day=1/x.csv", "day=1/_SUCCESS", "day=2/y.csv",
        "day=2/.y.csv.csv.edl-index", "_temporary/z.csv", "odd[1].csv", "_only/_x.csv",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("c\n1\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["b.csv", "a.csv"], ["b.csv", "a.csv"]),
        (["*.csv"], ["a.csv", "b.csv", "odd[1].csv"]),
        (["b.csv", "?.csv", "./a.csv"], ["b.csv", "a.csv"]),
        (["odd[1].csv"], ["odd[1].csv"]),
        (["day=2", "day=1"], ["day=2/y.csv", "day=1/x.csv"]),
        (["day=*"], ["day=1/x.csv", "day=2/y.csv"]),
        (["day=1/*"], ["day=1/x.csv"]),
        (["day=1/_*"], ["day=1/_SUCCESS"]),
        (["**/[xy].csv"], ["day=1/x.csv", "day=2/y.csv"]),
        (["day=1/**"], ["day=1/x.csv"]),
        (
            ["."],
            ["a.csv", "b.csv", "notes.txt", "odd[1].csv", "day=1/x.csv", "day=2/y.csv"],
        ),
    ],
)
def test_what_names_which_files(tree: Path, paths: list[str], expected: list[str]) -> None:
    assert expand(paths) == [str(tree / name) for name in expected]
    assert expand([str(tree / path) for path in paths]) == [str(tree / name) for name in expected]


def test_the_home_folder_is_known(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert expand(["~/a.csv"]) == expand(["~/[a].csv"]) == [str(tree / "a.csv")]
    assert open_source("~/a.csv").name == str(tree / "a.csv")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.csv", "none.csv: no such file"),
        ("none-*.csv", r"none-\*.csv: no file matches; check the pattern"),
        ("empty", "empty: the folder holds no data files"),
        ("_only", "_only: the folder holds no data files"),
    ],
)
def test_a_pattern_without_files_is_named(tree: Path, path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        expand(["a.csv", path])


def test_no_pattern_at_all() -> None:
    with pytest.raises(UsageError, match="name files, globs or folders"):
        expand([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tree: Path) -> None:
    (tree / "a.csv").chmod(0)
    with pytest.raises(UsageError, match=r"a.csv: cannot be read \(Permission denied\)"):
        expand(["*.csv"])


def test_a_name_that_is_not_utf8_is_refused(tree: Path) -> None:
    (tree / "odd").mkdir()
    Path(os.fsdecode(bytes(tree / "odd") + b"/d\xff.csv")).write_text("n\n1\n")
    with pytest.raises(UsageError, match=r"odd/d\\xff.csv: the name is not UTF-8.* rename"):
        expand([str(tree / "odd")])


def test_a_link_to_nothing_is_named(tree: Path) -> None:
    (tree / "link.csv").symlink_to(tree / "gone.csv")
    with pytest.raises(UsageError, match=r"link.csv: cannot be read \(No such file"):
        expand(["l*.csv"])


# ---- formats ----


def written(path: Path, kind: str) -> str:
    """Write a file of one record in a format."""
    case = next(case for case in FILES if case.name.startswith(kind))
    case.write(path, case.make(1, 0))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("recordio", "a.recordio"),
        ("recordio", "a.rio"),
        ("tfrecord", "a.TFRecord"),
        ("tfrecord", "train.tfrecord-00000-of-00010"),
        ("csv", "a.csv"),
        ("csv", "a.csv.1"),
        ("csv", "a.parquet.csv"),
        ("csv", "a.tsv"),
        ("parquet", "part-0.snappy.parquet"),
        ("parquet", "a.pq"),
        ("arrow", "data-00000-of-00002.arrow"),
        ("arrow", "a.feather"),
        ("jsonl", "a.jsonl"),
        ("jsonl", "part-0.json"),
        ("libsvm", "a.svm"),
        ("webdataset", "train-000001.tar"),
        ("avro", "part-0.avro"),
    ],
)
def test_the_suffix_tells_the_format(tmp_path: Path, kind: str, name: str) -> None:
    source = open_source(written(tmp_path / name, kind))
    assert type(source).__module__.endswith(f".{kind}")
    assert source.count == 1


@pytest.mark.parametrize("kind", ["recordio", "tfrecord", "parquet", "arrow", "webdataset", "avro"])
def test_else_the_first_bytes_do(tmp_path: Path, kind: str) -> None:
    source = open_source(written(tmp_path / "data", kind))
    assert type(source).__module__.endswith(f".{kind}")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_named_format_is_taken_at_its_word(tmp_path: Path, kind: str) -> None:
    assert open_source(written(tmp_path / "a.txt", kind), format=kind).count == 1


def test_a_missing_library_is_named_by_the_first_bytes(tmp_path: Path) -> None:
    """Nothing but the format of the file is imported to find it."""
    code = (
        "import sys; sys.modules['fastavro'] = None\n"
        "from torch_edl.data.sources import open_source\n"
        "from torch_edl.errors import UsageError\n"
        "try: open_source(sys.argv[1])\n"
        "except UsageError as error: print(error)\n"
        "print(*(name for name in sys.modules if name.startswith('torch_edl.plugins.')))\n"
    )
    command = [sys.executable, "-c", code, written(tmp_path / "data", "avro")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    error, loaded = done.stdout.splitlines()
    assert "pip install 'torch-edl[avro]'" in error
    formats = {name.rpartition(".")[2] for name in loaded.split()} - {"formats", "magic"}
    assert all(name.startswith("avro") for name in formats), loaded


def test_formats_that_nothing_tells(tmp_path: Path) -> None:
    path = written(tmp_path / "data", "csv")
    with pytest.raises(DataError, match=r"neither its suffix nor .* give it a suffix \(.recordio"):
        open_source(path)
    with pytest.raises(UsageError, match="data format 'xml': choose one of auto, recordio"):
        open_source(path, format="xml")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        open_source(str(tmp_path / "none"))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        open_source(str(tmp_path / "none.csv"))


def test_relative_paths_become_absolute_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("c\n1\n")
    assert open_source("a.csv").name == str(tmp_path / "a.csv")


def test_recordio_is_read_without_torch_and_without_pyarrow(tmp_path: Path) -> None:
    path = written(tmp_path / "data", "recordio")
    code = (
        "import sys; from torch_edl.data.sources import open_source;"
        f"assert open_source({path!r}).read(0, 1) == [b'0:'];"
        "print([name for name in ('torch', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S
    )
    assert done.stdout == "[]\n", done.stderr


# ---- names with # ----


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("postgresql://u@h/d#table=t&key=id", True),
        ("postgresql+psycopg://u@h/d", True),
        ("mysql+pymysql://h/d#table=t&key=id", True),
        ("kafka://h:9092/topic", True),
        ("odps://p/t#partition=day=1", True),
        ("s3://bucket/part#1.csv", False),
        ("s3://bucket/part#table=t&key=id", False),
        ("gs://bucket/day=1/part#1.parquet", False),
        ("https://host/part.csv#1", False),
        ("memory://part#1.csv", False),
        ("unknown://h/d#table=t&key=id", False),
        ("/data/part#1.csv", False),
        ("postgresql#1.csv", False),
    ],
)
def test_only_known_schemes_are_databases(name: str, expected: bool) -> None:
    assert (url_type(name) is not None) == expected


def test_a_scheme_of_a_package_of_sqlalchemy_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_dialects", lambda: frozenset(["clickhouse"]))
    assert url_type("clickhouse+http://h/d#table=t&key=id")
    assert url_type("clickhouse2://h/d#table=t&key=id") is None


def test_files_and_objects_may_have_a_number_sign_in_their_names(tmp_path: Path) -> None:
    path = tmp_path / "part#1.csv"
    path.write_text("n\n1\n2\n")
    memory = fsspec.filesystem("memory")
    memory.pipe("/hash/part#1.csv", path.read_bytes())
    try:
        for name in (str(path), "memory://hash/part#1.csv", "memory://hash/part#*.csv"):
            (found,) = expand([name])
            assert open_source(found).read(0, 2)["n"].to_pylist() == [1, 2]  # type: ignore[call-overload]
    finally:
        memory.rm("/hash", recursive=True)


def test_the_folders_of_a_partitioned_table_are_columns(tmp_path: Path) -> None:
    folder = tmp_path / "day=2026-11-01" / "hour=07" / "city=New%20York" / "n=4"
    folder.mkdir(parents=True)
    table = pa.table({"n": [1, 2, 3]})
    parquet.write_table(table, folder / "part-0.parquet")
    (folder / "part-1.csv").write_text("n\n1\n2\n3\n")
    (none := tmp_path / "day=__HIVE_DEFAULT_PARTITION__").mkdir()
    (none / "x.csv").write_text("n\n1\n")
    for name in ("part-0.parquet", "part-1.csv"):
        source = open_source(str(folder / name))
        assert source.metadata.column_names == ("n", "day", "hour", "city")
        rows = source.read(1, 3).to_pydict()
        # A column of the file has precedence.
        assert rows == {
            "n": [2, 3], "day": ["2026-11-01"] * 2, "hour": [7, 7], "city": ["New York"] * 2
        }  # fmt: skip
        assert source.read(0, 0).column_names == ["n", "day", "hour", "city"]
    assert open_source(str(none / "x.csv")).read(0, 1).to_pydict() == {"n": [1], "day": [None]}
