"""Local files stay open for the next read, and few of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_edl.data.sources import data_file
from torch_edl.data.sources.data_file import DataFile, opened
from torch_edl.errors import DataError


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "_idle", data_file.OrderedDict())


def file(folder: Path, name: str) -> DataFile:
    (folder / name).write_text(name)
    with DataFile(str(folder / name)) as found:
        return found


def test_the_next_reader_has_the_same_file_and_a_second_one_its_own(tmp_path: Path) -> None:
    path, stamp = str(tmp_path / "a"), file(tmp_path, "a").stamp
    with opened(path, stamp) as first:
        assert first.read_at(0, 1) == b"a"
        with opened(path, stamp) as second:
            assert second is not first
    with opened(path, stamp) as again:
        assert again in (first, second)


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "MAX_OPEN", 2)
    found = [file(tmp_path, f"{n}") for n in range(5)]
    for each in found:
        with opened(each.path, each.stamp):
            pass
    paths = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert sum(path.startswith(f"{tmp_path}/") for path in paths) == 2


def test_what_fails_is_not_used_again(tmp_path: Path) -> None:
    path, stamp = str(tmp_path / "a"), file(tmp_path, "a").stamp
    with pytest.raises(DataError), opened(path, stamp) as first:
        first.read_at(0, 99)
    with opened(path, stamp) as second:
        assert second is not first
