"""Two machines that have a server each, and a third one with a client of the first. The first
machine loses its network, without a word to anybody, and its name gets the address of the second.

Prints a JSON object: for each connection of the client, the outcome of its call and the seconds
since the first machine vanished. Each machine is a network namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster import linux, network

_NAME, _PORT, _DATA_PORT = "master.test", 4000, 4001
_TOKEN = "0123456789abcdef" * 4
_DOORS = Path(tempfile.mkdtemp())
"""Has a file for each machine with a server: the address at which it accepts streams."""


def main() -> None:
    network.enter_cluster()
    first, second, third = (network.PodNetwork() for _ in range(3))
    name = _own_file("/etc/hosts", f"{first.address} {_NAME}\n")
    # The refusal of a port that nobody listens at; no machine has an IPv6 address.
    _own_file("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    print(end=f'{{"successor": "{second.address}", ', flush=True)
    _start(first, _serve, first.address)
    _start(second, _serve, second.address)
    client, go_on = _start(third, _call, first.address)
    first.cut_off()
    name.write_text(f"{second.address} {_NAME}\n")
    os.write(go_on, b".")
    _, status = os.waitpid(client, 0)
    shutil.rmtree(_DOORS)
    sys.exit(os.waitstatus_to_exitcode(status))


def _own_file(path: str, text: str) -> Path:
    """Replace a file for the processes of this program."""
    file = Path(tempfile.mkstemp()[1])
    file.write_text(text)
    linux.mount(str(file), path, flags=linux.BIND)
    file.unlink()
    return Path(path)


def _start(
    machine: network.PodNetwork, program: Callable[[str, Callable[[], None]], None], address: str
) -> tuple[int, int]:
    """Start a process on a machine and wait until the process calls ``pause``, which returns when
    a byte is written to the pipe.

    Returns:
        The pid and the pipe.
    """
    ready, said = os.pipe()
    heard, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent()
        linux.enter(machine.namespace)

        def pause() -> None:
            os.write(said, b".")
            os.read(heard, 1)

        try:
            program(address, pause)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    os.close(said)
    if not os.read(ready, 1):
        sys.exit("a process ended before it was ready")
    return pid, tell


def _serve(address: str, pause: Callable[[], None]) -> None:
    from tf_compat.collectives.streams import Door
    from torch_edl.wire import master_pb2 as pb
    from torch_edl.wire import pserver_pb2 as ps
    from torch_edl.wire import server, services
    from torch_edl.wire.codec import Framed
    from torch_edl.wire.data_plane.server import DataServer

    def answer(*_: Any) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(job=address)

    def never(request: Framed, _may_wait: bool) -> Framed:
        if request.message.read_only:
            threading.Event().wait()
        return Framed(ps.PullResponse())

    handlers = dict.fromkeys(services.methods(services.CONTROL), answer)
    at = f"0.0.0.0:{_PORT}"
    listening = server.serve(services.CONTROL, handlers, address=at, token=_TOKEN, threads=1)
    data = DataServer(
        {"pull": never}, endpoint=f"tcp://{address}:{_DATA_PORT}", token=_TOKEN, threads=2
    )
    door = Door(address, _TOKEN)
    (_DOORS / address).write_text(door.address)
    streams: list[Any] = []

    def welcome() -> None:
        streams.append(door.welcome(door.accept()[0], 60))

    threading.Thread(target=welcome, daemon=True).start()
    pause()
    del listening, data


def _call(first: str, pause: Callable[[], None]) -> None:
    import grpc
    import numpy as np

    from tf_compat.collectives.streams import connect
    from torch_edl.wire import master_pb2 as pb
    from torch_edl.wire import pserver_pb2 as ps
    from torch_edl.wire import services
    from torch_edl.wire.channel import Stub
    from torch_edl.wire.codec import Framed
    from torch_edl.wire.data_plane.stub import DataStub

    idle, busy = (Stub(services.CONTROL, f"{_NAME}:{_PORT}", _TOKEN) for _ in range(2))
    data = DataStub(f"tcp://{first}:{_DATA_PORT}", _TOKEN)
    for stub in (idle, busy):
        assert stub.call(pb.GetStatusRequest(), timeout_s=60, wait=True).job == first
    data.call(Framed(ps.PullRequest()), timeout_s=60)
    stream = connect((_DOORS / first).read_text(), b"", _TOKEN, 60)
    pull = data.start(Framed(ps.PullRequest(read_only=True)), timeout_s=60)
    pause()
    found: dict[str, tuple[str, float]] = {}
    began = time.monotonic()

    def note(what: str, call: Callable[[], str]) -> None:
        try:
            outcome = call()
        except grpc.RpcError as error:
            outcome = error.code().name
        except OSError as error:
            outcome = type(error).__name__
        found[what] = outcome, time.monotonic() - began

    def ask(stub: Stub) -> str:
        return str(stub.call(pb.GetStatusRequest(), timeout_s=60, wait=True).job)

    threads = [
        threading.Thread(target=note, args=("busy", lambda: ask(busy))),
        threading.Thread(target=note, args=("data", lambda: str(pull.result()))),
        threading.Thread(
            target=note,
            args=("stream", lambda: str(stream.receive(np.empty(1, np.uint8)))),
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note("idle", lambda: ask(idle))
    print(json.dumps(found)[1:])


if __name__ == "__main__":
    main()
