"""Starts containers by forking a process that has imported what their commands will import.

A machine of the tests has two cores and little memory: hundreds of workers that import torch would
need minutes, and 200 MB each. Forked, they share what is imported until they write to it. A process
that was forked goes through the same namespaces, root, user and environment as any container; only
its interpreter is not started anew. What modules read of the environment when they are imported is
that of the first container, and the hash of texts that of ``PYTHONHASHSEED=0``.

``python -m tests.cluster.zygote SOCKET MODULE...`` by :class:`Zygote`; a command ``python -P -m
MODULE ARGS`` of one of these modules can be forked.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tests.cluster import linux
from tests.cluster.container import ContainerSpec, run

ROOT = Path(__file__).parents[2]
_MESSAGE_BYTES = 4096
_WORDS = ["python", "-P", "-m"]


class Forked:
    """A container that was forked; as an ``asyncio.subprocess.Process``."""

    def __init__(self, pidfd: int, stdout: asyncio.StreamReader) -> None:
        self.stdout: asyncio.StreamReader | None = stdout
        self._pidfd = pidfd
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    def ended(self, code: int) -> None:
        os.close(self._pidfd)
        self._pidfd = -1
        self._code.set_result(code)

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd < 0:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)


class Zygote:
    """The process, and what it has forked. Use it in one event loop.

    Args:
        modules: that it imports.
        log: its output.
    """

    def __init__(self, modules: Sequence[str], log: Path) -> None:
        self._modules = frozenset(modules)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        words = [sys.executable, "-m", "tests.cluster.zygote", str(theirs.fileno()), *modules]
        env = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
               "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1",
               "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # fmt: skip
        with open(log, "wb") as output, theirs:
            self._process = subprocess.Popen(
                words, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self._socket = ours
        self._running: dict[int, Forked] = {}
        self._ended: dict[int, int] = {}  # before this process knew of them
        self._lock = asyncio.Lock()
        self._answer: asyncio.Future[tuple[int, int]] | None = None

    def can(self, command: Sequence[str]) -> bool:
        """Whether a command can be forked."""
        return list(command[:3]) == _WORDS and command[3] in self._modules

    async def start(self, spec: Path, network: int, limit: int) -> Forked:
        """Starts a container.

        Args:
            spec: the file of its :class:`ContainerSpec`.
            network: file descriptor of its network namespace.
            limit: bytes of its longest line.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), self._heard)
        read, write = os.pipe()
        reader = asyncio.StreamReader(limit=limit)
        output = os.fdopen(read, "rb")
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
        async with self._lock:
            self._answer = loop.create_future()
            socket.send_fds(self._socket, [str(spec).encode()], [network, write])
            os.close(write)
            pid, pidfd = await self._answer
        forked = self._running[pid] = Forked(pidfd, reader)
        if pid in self._ended:
            self._running.pop(pid).ended(self._ended.pop(pid))
        return forked

    def _heard(self) -> None:
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, 1)
            except BlockingIOError:
                return
            if not message:
                raise RuntimeError("the zygote has ended")
            told = json.loads(message)
            if "code" in told and told["pid"] not in self._running:
                self._ended[told["pid"]] = told["code"]
            elif "code" in told:
                self._running.pop(told["pid"]).ended(told["code"])
            else:
                assert self._answer is not None
                self._answer.set_result((told["pid"], fds[0]))

    def close(self) -> None:
        """Everything that was forked ends."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _import(modules: Sequence[str], env: dict[str, str]) -> None:
    before = dict(os.environ)
    os.environ.update(env)
    for module in modules:
        importlib.import_module(module)
    os.environ.clear()
    os.environ.update(before)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads: what is forked would have one of them"
    gc.freeze()


def _serve(orders: socket.socket, modules: Sequence[str]) -> None:
    """Forks what it is told to, and tells how that ended, until nobody listens."""
    wakes, wake = socket.socketpair()
    for each in (wakes, wake):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    waits = select.poll()
    waits.register(orders, select.POLLIN)
    waits.register(wakes, select.POLLIN)
    while True:
        ready = {fd for fd, _ in waits.poll()}
        if wakes.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                wakes.recv(4096)
            _reap(orders)
        if orders.fileno() not in ready:
            continue
        path, fds, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, 2)
        if not path:
            return
        network, output = fds
        if modules:
            _import(modules, ContainerSpec.read(Path(path.decode())).env)
            modules = ()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (orders, wakes, wake):
                each.close()
            _run(path.decode(), network, output)
        os.close(network)
        os.close(output)
        pidfd = os.pidfd_open(pid)  # it is not reaped before the next turn
        socket.send_fds(orders, [json.dumps({"pid": pid}).encode()], [pidfd])
        os.close(pidfd)


def _reap(orders: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            orders.send(json.dumps({"pid": pid, "code": code}).encode())


def _run(path: str, network: int, output: int) -> NoReturn:
    """The container."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, place in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, place)
        os.close(output)
        spec = ContainerSpec.read(Path(path))
        spec.network = network
        code = run(spec, execute=_execute)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Does what the interpreter would do with a command that can be forked."""
    module, args = command[3], command[4:]
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *args]
    sys.modules.pop(module, None)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main() -> None:
    linux.die_with_parent()
    orders = socket.socket(fileno=int(sys.argv[1]))
    _serve(orders, sys.argv[2:])


if __name__ == "__main__":
    main()
