"""A cgroup with a limit of memory, in which the kernel kills for real."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for

_MOUNTS = [  # of cgroup v1 and v2: where groups are made, and the file with the limit
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
]


@contextlib.contextmanager
def memory_group(name: str, limit: int) -> Iterator[Callable[..., None]]:
    """Yields a function by which this process enters the group, or another one by its pid.
    Skips the test if this user may not make groups."""
    for mount, file in _MOUNTS:
        group = mount / f"{name}-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
        except OSError:  # the hierarchy has no controller of memory
            group.rmdir()
            continue
        break
    else:
        pytest.skip("this user may not make cgroups with a limit of memory")

    def enter(pid: int = 0) -> None:
        (group / "cgroup.procs").write_text(str(pid or os.getpid()))

    try:
        yield enter
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of all in the group")
        group.rmdir()
