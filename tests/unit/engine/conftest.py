"""Real parameter servers, one process each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

TOKEN = "strategy-test"


@pytest.fixture
def start_servers() -> Iterator[Callable[..., list[str]]]:
    """``start(n, *flags)`` starts n servers of job ``t`` and returns their addresses."""
    running: list[subprocess.Popen[str]] = []

    def start(count: int, *flags: str) -> list[str]:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "torch_edl.ps_server", "--job", "t", "--shard", str(shard),
                 "--shards", str(count), "--incarnation", "1", *flags],
                stdout=subprocess.PIPE, text=True,
                env={**os.environ, "TORCH_EDL_TOKEN": TOKEN},
            )
            for shard in range(count)
        ]  # fmt: skip
        running.extend(started)
        addresses = []
        for process in started:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), line
            addresses.append(line.split()[-1])
        return addresses

    yield start
    for process in running:
        process.kill()
        process.communicate()
