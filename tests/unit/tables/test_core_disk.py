"""The compiled core: what only tables on a disk do. All other tests of tables run with both places.

A limit of the size of files has the effect of a full disk.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.disk_folder import local_disk
from tests.unit.tables.core_tables import make, rows
from tests.waiting import wait_for
from torch_edl import _core

DIM = 64  # rows of Adam: 768 bytes; a slab of 4,096 rows is 3 MB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return local_disk(tmp_path)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_file_has_no_name_and_ends_with_the_table(folder: Path) -> None:
    def files() -> list[str]:
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                 if os.path.islink(f"/proc/self/fd/{fd}")]  # fmt: skip
        return [link for link in links if link.startswith(str(folder))]

    table = make(folder=str(folder))
    rows(table, np.arange(100), read_only=False)
    assert os.listdir(folder) == []
    assert len(files()) == 1
    assert files()[0].endswith(" (deleted)")
    del table
    assert files() == []


def test_a_folder_that_cannot_keep_rows_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(OSError, match=re.escape(f"disk:{missing}: No such file")) as failed:
        make(folder=str(missing))
    assert failed.value.errno == errno.ENOENT
    plain = tmp_path / "file"
    plain.touch()
    with pytest.raises(OSError, match="Not a directory"):
        make(folder=str(plain))
    with pytest.raises(ValueError, match="disk:/dev/shm: a file system in memory"):
        make(folder="/dev/shm")


def test_bytes_tell_disk_and_memory_apart(folder: Path) -> None:
    table, same = make(DIM, "adam", folder=str(folder)), make(DIM, "adam")
    assert table.disk_bytes == 0
    for each in (table, same):
        rows(each, np.arange(100_000), read_only=False)
    slab = 4096 * DIM * 3 * 4
    assert table.disk_bytes % slab == 0
    assert 100_000 * DIM * 3 * 4 <= table.disk_bytes < 100_000 * DIM * 3 * 4 + 17 * slab
    assert same.disk_bytes == 0
    assert 0.9 < table.bytes / same.bytes <= 1.0


def test_two_tables_share_a_folder(folder: Path) -> None:
    first, second = make(folder=str(folder)), make(folder=str(folder))
    ids = np.arange(1000)
    start = rows(first, ids, read_only=False)
    rows(second, ids, read_only=False)
    first.push(ids, np.ones((1000, 4), np.float32), 1.0, 1)
    assert (rows(first, ids) == start - 1).all()
    assert (rows(second, ids) == start).all()


def test_a_full_disk_is_an_error_before_any_change(folder: Path) -> None:
    table = make(DIM, "adam", folder=str(folder))
    old = np.arange(50_000)
    rows(table, old, read_only=False)
    new = np.arange(1_000_000, 1_200_000)
    with files_of_at_most(table.disk_bytes):
        # Pulls go on, with initial values, and leave room for pushes.
        begun = _core.init_rows("t", 7, "normal", {"std": 1.0}, new, DIM)
        assert (rows(table, new, read_only=False) == begun).all()
        size = table.size
        assert 50_000 <= size < 250_000 - 16 * 1024
        with pytest.raises(OSError, match=f"table t: disk:{folder} has no room") as failed:
            table.prepare(new)
        assert failed.value.errno == errno.EFBIG
        assert table.size == size
        # A push of known ids needs no room.
        table.prepare(old)
        table.push(old, np.ones((len(old), DIM), np.float32), 0.1, 1)
        assert table.size == size

    def has_room() -> bool:
        try:
            table.prepare(new)
        except OSError:
            return False
        return True

    wait_for(has_room)  # the disk is tried again after 100 ms
    table.push(new, np.ones((len(new), DIM), np.float32), 0.1, 2)
    assert table.size == 250_000


def test_a_row_that_was_evicted_makes_room(folder: Path) -> None:
    table = make(DIM, "adam", folder=str(folder), max_rows=20_000)
    for step in range(1, 41):
        ids = np.arange(step * 5000, (step + 1) * 5000)
        rows(table, ids, read_only=False)
        table.push(ids, np.ones((5000, DIM), np.float32), 0.1, step)
        while len(table.evict(step, aged=False)):
            pass
        if step == 10:
            size = table.disk_bytes
    assert table.size <= 20_000
    assert table.disk_bytes == size
