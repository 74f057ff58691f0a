"""The process of a parameter server: start, arguments, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_TOKEN


@pytest.mark.executed
def test_it_starts_fast_without_torch_and_stops_on_sigterm(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    # Its own time, 0.25 s, and not the clock's, which a busy machine stretches.
    stat = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    assert (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK") < 1
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "_core" in maps
    for library in ("libtorch", "libarrow"):
        assert library not in maps
    assert server.stop() == 128 + signal.SIGTERM
    server.log.seek(0)
    assert "stopped" in server.log.read()


def test_it_stops_while_a_push_waits_for_a_hold(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    server.initialize({}, {"t": 4})
    server.hold(60_000)
    codes: list[grpc.StatusCode] = []

    def push() -> None:
        try:
            server.push(0, 0, 1)
        except grpc.RpcError as error:
            codes.append(error.code())

    thread = threading.Thread(target=push)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(HANG_S) == 128 + signal.SIGTERM
    thread.join(HANG_S)
    assert codes[0] in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        (["--shard=2", "--shards=2"], {}, "--shard 2: must be in 0..1"),
        (["--restore=/nowhere/at/all"], {}, "/nowhere/at/all: neither a checkpoint"),
        ([], {ENV_TOKEN: ""}, "TORCH_EDL_TOKEN: not set"),
        (["--grads-to-wait=0"], {}, "--grads-to-wait 0"),
    ],
)
def test_what_cannot_work_is_one_line_and_an_exit_code(
    args: list[str], env: dict[str, str], message: str
) -> None:
    command = [sys.executable, "-m", "torch_edl.ps_server", "--job=j", "--shard=0", "--shards=1"]
    done = subprocess.run(
        [*command, "--incarnation=0", *args],
        env={**os.environ, ENV_TOKEN: "t", **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(start: Callable[..., Any]) -> None:
    (server,) = start(1)
    port = server.address.split(":")[1]
    with pytest.raises(pytest.fail.Exception, match="the port is in use"):
        start(1, f"--port={port}")
