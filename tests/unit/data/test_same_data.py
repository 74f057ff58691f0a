"""A job that resumes on files of the same names and counts with other contents is told so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from master.runtime.scan import count
from tests.http_server import HttpServer
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.resuming import check_data, identity, touched
from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import open_batches

ROWS = 40_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    path.write_text("n\n" + "1\n" * ROWS + "2\n" * ROWS)
    return path


def data_of(*names: str) -> dict[str, Any]:
    """The ``data`` of a manifest, as a job that begins now would write it."""
    config = JobConfig(name="j", model_file="/m.py", data=DataConfig(train=names))
    found = count(config)
    assert found.error == ""
    made: dict[str, Any] = json.loads(json.dumps(identity(config, found.shards["train"])))
    return made


def put(path: Path, offset: int) -> None:
    """Changes one byte, and neither size, number of records nor time of the file."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"7")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def grow(path: Path) -> None:
    """One number has a digit more."""
    path.write_text(path.read_text().replace("1\n2\n", "1\n22\n"))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "first block": (lambda path: put(path, 2), "its first or its last block is another one"),
    "last block": (lambda path: put(path, 4 * ROWS), "its first or its last block is another one"),
    "size": (grow, r"it was 80,000 records, 160,002 bytes .* now it is .* 160,003 bytes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_content_is_named(file: Path, name: str) -> None:
    change, message = CHANGES[name]
    then = data_of(str(file))
    check_data(Path("/ck"), then, data_of(str(file)))
    change(file)
    now = data_of(str(file))
    assert then["shards"] == now["shards"]
    with pytest.raises(UsageError, match=f"the content of .*data.csv is not .*: {message}"):
        check_data(Path("/ck"), then, now)


def test_a_copy_is_the_same_and_its_time_is_told(file: Path, tmp_path: Path) -> None:
    then = data_of(str(file))
    shutil.copy(file, tmp_path / "copy")
    os.utime(tmp_path / "copy", ns=(0, 10**18))
    shutil.move(tmp_path / "copy", file)
    now = data_of(str(file))
    check_data(Path("/ck"), then, now)
    assert touched(then, now) == [str(file)]
    assert touched(then, then) == []


def test_the_contents_are_not_compared_with_a_checkpoint_that_has_none(file: Path) -> None:
    then = data_of(str(file))
    del then["contents"]
    put(file, 2)
    check_data(Path("/ck"), then, data_of(str(file)))


def test_a_script_has_them_in_the_digest_of_its_files(file: Path) -> None:
    def digest() -> str:
        passed = {"batch_size": 8, "epochs": 1, "seed": 0, "shuffle": False}
        return open_batches(str(file), passed, 0, {}).data.files

    then = digest()
    assert digest() == then
    put(file, 4 * ROWS)
    assert digest() != then


def test_the_tag_of_an_object_tells_its_content(tmp_path: Path) -> None:
    """Without a request for its blocks; the middle of the file is another one here."""
    server = HttpServer(tmp_path)
    try:
        file, url = server.files / "data.csv", f"{server.url}/files/data.csv"
        file.write_text("n\n" + "1\n" * 200_000)
        then = data_of(url)
        check_data(Path("/ck"), then, data_of(url))
        file.write_text("n\n" + "1\n" * 100_000 + "2\n" + "1\n" * 99_999)
        with pytest.raises(UsageError, match=r"the content of .*/data.csv is not what"):
            check_data(Path("/ck"), then, data_of(url))
    finally:
        server.kill()
