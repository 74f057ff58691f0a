"""Real parameter servers, one process each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from torch_edl.wire import master_pb2 as pb

TOKEN = "strategy-test"


@pytest.fixture
def start_servers() -> Iterator[Callable[..., list[pb.Server]]]:
    """``start(n, *flags)`` starts n servers of job ``t``, with the incarnations 1 to n."""
    running: list[subprocess.Popen[str]] = []

    def start(count: int, *flags: str) -> list[pb.Server]:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "torch_edl.ps_server", "--job", "t", "--shard", str(shard),
                 "--shards", str(count), "--incarnation", str(shard + 1), *flags],
                stdout=subprocess.PIPE, text=True,
                env={**os.environ, "TORCH_EDL_TOKEN": TOKEN},
            )
            for shard in range(count)
        ]  # fmt: skip
        running.extend(started)
        servers = []
        for shard, process in enumerate(started):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), line
            data_plane, address = line.split()[-2:]
            servers.append(pb.Server(address=address, data_plane=data_plane, incarnation=shard + 1))
        return servers

    yield start
    for process in running:
        process.kill()
        process.communicate()
