"""Starts programs of torch-edl in milliseconds: a process that has imported them all forks them.

The fork server of a node does the work, with this module as its program. A forked program starts
its own children in the same way: its copy, which is forked before the program begins, serves it. So
a client, its master, its node, the fork server of the node and parameter servers are processes as
if each had been executed: own pids, environments, sessions and parents, and they die by the same
signals. Workers of Keras, scripts, and commands with other settings of Python or of OpenMP are
executed. So is all of a test that is marked as slow: storms start processes as users do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import multiprocessing.context
import multiprocessing.util
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import popen_spawn_posix, resource_tracker
from pathlib import Path
from typing import Any
from unittest import mock

import master
import torch_edl
from tests.waiting import HANG_S
from torch_edl.node import fork_server
from torch_edl.node.forks import ForkServer, module_server
from torch_edl.processes import exec_child
from torch_edl.processes.this_process import leave

ROOT = Path(__file__).parents[1]

# Programs that are forked, by the name that follows -m, beside those of the tests.
_PROGRAMS = {
    "torch_edl.cli": "torch_edl.cli.__main__",
    "master": "master.__main__",
    "master.runtime.scan": "master.runtime.scan",
    "torch_edl.node": "torch_edl.node.__main__",
    "torch_edl.node.fork_server": "torch_edl.node.fork_server",
    "torch_edl.ps_server": "torch_edl.ps_server.__main__",
}
_OF_TESTS = "tests."
# The target of a process of multiprocessing, by its command.
_TARGET = "--multiprocessing-fork"
_CHILDLESS = {"master.runtime.scan", "torch_edl.node.fork_server", "torch_edl.ps_server"}
# Programs import these late.
_LIBRARIES = (
    "pyarrow.parquet", "pandas", "sqlite3", "torch.distributed", "torch.utils.data", "pytest"
)  # fmt: skip
# Variables that are read when Python begins, or while these are imported.
_READ_AT_START = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "OPENBLAS_",
    "TORCH_",
    "JE_",
)
# What the server has of them; a program without these variables may be forked too.
_SETTINGS = {
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",  # that of a job, unless it has another seed
    "GRPC_VERBOSITY": "ERROR",
    "OMP_WAIT_POLICY": "passive",
    "THP_MEM_ALLOC_ENABLE": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# Room for the environment and the command line of a forked process, which replace those of the
# server in /proc.
_ROOM, _ROOM_VARIABLE = 1 << 15, "ROOM"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37

_libc = ctypes.CDLL(None)
_environment: dict[str, str] = {}
_lock = threading.Lock()
_server: ForkServer | None = None
_owner = 0
_base_path: list[str] = []


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """Forks the program, if it can be forked."""

    # fmt: off
    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
        env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
        c2pread: int, c2pwrite: int, errread: int, errwrite: int, *rest: Any,
    ) -> None:
        # fmt: on
        _, gid, gids, uid, umask, _, group = rest
        special = executable or preexec_fn or shell or not close_fds or umask != -1 or group != -1
        pid = 0
        if not special and gid is gids is uid is None and not isinstance(args, str | os.PathLike):
            given = dict(enumerate((p2cread, c2pwrite, errwrite)))
            files = {fd: fd if file == -1 else file for fd, file in given.items()}
            files |= {fd: fd for fd in pass_fds}
            pid = _fork([os.fsdecode(word) for word in args], env, cwd, files)
        if not pid:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *rest
            )  # type: ignore[misc]  # fmt: skip
            return
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


class _Target(popen_spawn_posix.Popen):
    """Forks a process of multiprocessing, which runs a function."""

    def _launch(self, process: Any) -> None:
        resource_tracker.ensure_running()
        with mock.patch.object(multiprocessing.util, "spawnv_passfds", self._spawn):
            super()._launch(process)

    @staticmethod
    def _spawn(python: Any, words: Sequence[str], fds: Sequence[int]) -> int:
        command = [os.fsdecode(word) for word in words]
        pid = _fork(command, None, None, {fd: fd for fd in (0, 1, 2, *fds)})
        assert pid, "a function must run in a forked process: see the environment"
        return pid


class _Process(multiprocessing.context.SpawnProcess):
    _Popen = staticmethod(_Target)  # type: ignore[assignment]


class _Forks(multiprocessing.context.SpawnContext):
    Process = _Process  # type: ignore[assignment]


FORKS: Any = _Forks()
"""Context of :mod:`multiprocessing` whose processes are forked."""


@contextlib.contextmanager
def programs() -> Iterator[None]:
    """Let this process fork programs that it starts by :mod:`subprocess`."""
    _environment.update(_environment or os.environ)  # as it is before a test
    executed, subprocess.Popen = subprocess.Popen, Popen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = executed  # type: ignore[misc]


def _started() -> ForkServer | None:
    """Return the server of this process; None where there is none and this thread cannot start it:
    the kernel ends the server with the thread."""
    global _server, _owner
    if _server is None and threading.current_thread() is threading.main_thread():
        room = "x" * _ROOM
        env = {**(_environment or os.environ), **_SETTINGS, _ROOM_VARIABLE: room}
        ready = threading.Event()
        _owner = os.getpid()
        subprocess.Popen = Popen.__base__  # type: ignore[misc]
        _server = ForkServer(module_server(__name__, room, job="tests"), env, ready=ready.set)
        subprocess.Popen = Popen  # type: ignore[misc]
        assert ready.wait(HANG_S)
        assert _server.is_usable
    return _server if os.getpid() == _owner else None


def _fork(words: Sequence[str], env: Mapping[str, str] | None, cwd: Any, files: Any) -> int:
    """Return the pid of the forked program; 0 if it cannot be forked."""
    server = _started() if _program(words) else None
    given = os.environ if env is None else env
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
    if server is None or not _fits(environment, server.env):
        return 0
    ignored = [
        int(number)
        for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    blocked = list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    order = json.dumps([os.fsdecode(cwd or os.getcwd()), ignored, blocked])
    before = ctypes.c_int()
    with _lock:
        # The parent of a forked process ends at once; this process becomes its parent then.
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            return server.fork([order, *words], environment, files)
        except OSError:
            return 0
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _program(words: Sequence[str]) -> tuple[str, int] | None:
    """Return the program that a command runs, and the place of its name; None if another."""
    place = 6 if _ends_with_parent(words) else 0
    if list(words[place : place + 1]) != [sys.executable]:
        return None
    place += 1
    if words[-1] == _TARGET:
        return _TARGET, len(words) - 1
    while words[place : place + 1] in (["-P"], ["-u"]):
        place += 1
    if words[place : place + 1] != ["-m"]:
        return None
    name = words[place + 1]
    return (name, place + 1) if name in _PROGRAMS or name.startswith(_OF_TESTS) else None


def _ends_with_parent(words: Sequence[str]) -> bool:
    return list(words[:4]) == exec_child.words([])[:4]


def _fits(env: Mapping[str, str], server: Mapping[str, str]) -> bool:
    """Return whether a process that was forked may have that environment."""
    for name in env.keys() | server.keys():
        if name == "PYTHONPATH":
            allowed = {"", str(ROOT)}
            if not allowed.issuperset(env.get(name, "").split(os.pathsep)):
                return False
        elif name in _SETTINGS:
            if env.get(name, _SETTINGS[name]) != _SETTINGS[name]:
                return False
        elif name.startswith("TORCH_EDL_") or not name.startswith(_READ_AT_START):
            continue
        elif env.get(name) != server.get(name):
            return False
    return True


# ---- in the fork server, and in what it forks ----


def preload(room: str) -> None:
    """Import all programs."""
    from torch_edl.training import worker

    worker.preload()
    for package in (torch_edl, master):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not {"plugins", "startup"} & set(module.name.split(".")):
                importlib.import_module(module.name)
    for library in _LIBRARIES:
        importlib.import_module(library)
    _show(sys.orig_argv[:6], {})
    _base_path[:] = [path for path in sys.path if path != str(ROOT)]


def run() -> None:
    """Run a command as if it had been executed."""
    global _server, _owner
    _libc.prctl(_PR_SET_PDEATHSIG, 0)
    cwd, ignored, blocked = json.loads(sys.argv[1])
    words = sys.argv[2:]
    os.chdir(cwd)
    _set_signals(ignored, blocked)
    if _ends_with_parent(words):
        exec_child.end_with(int(words[4]), int(words[5]))
        words = words[6:]
    name, place = _program(words)  # type: ignore[misc]
    _show(words)
    if name not in _CHILDLESS:
        _server, _owner = _Copy(), os.getpid()
        subprocess.Popen = Popen  # type: ignore[misc]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = [] if "-P" in words[:place] else [cwd]
    sys.path[:] = [*first, *(path or cwd for path in paths), *_base_path]
    tempfile.tempdir = None
    sys.argv = ["", *words[place + 1 :]]
    try:
        if name in _PROGRAMS:
            program: Any = sys.modules[_PROGRAMS[name]]
            sys.modules["__main__"], sys.argv[0] = program, str(program.__file__)
            code = program.main()
        elif name == _TARGET:
            sys.argv.append(_TARGET)
            exec(words[words.index("-c") + 1])
            code = 0
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    # Modules that are taken apart would be copied: their memory is that of the server.
    leave(code)


class _Copy(ForkServer):
    """The fork server of a program: a process that is forked from it before it begins."""

    def __init__(self) -> None:
        self.env = dict(os.environ)
        parent = os.getpid()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._link.close()
            _serve(theirs, parent)
        theirs.close()
        assert self._receive() == {"ready": True}

    def close(self) -> None:
        """Let the server end; forked processes continue."""
        self._link.close()


def _serve(link: socket.socket, parent: int) -> None:
    """Fork programs until the parent ends; return in none of these processes."""
    os.setsid()
    exec_child.end_with(parent, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    os.close(nothing)
    _show([], {})
    order = fork_server._serve(link, parent, "")
    if order is None:
        os._exit(0)
    fork_server._become(sys.modules[__name__], order)
    os._exit(0)


def _set_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    """As those of the process that starts this one; what has a handler has the usual one here."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if number in ignored:
            signal.signal(number, signal.SIG_IGN)
        elif signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _show(words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Show this command line and this environment in /proc, by default that of this process."""
    fork_server._name_process(list(words))
    for name, value in list(os.environ.items()):
        os.environ[name] = value  # a copy, beside the memory that is written below
    with open("/proc/self/stat", "rb") as file:
        begin, end = map(int, file.read().rpartition(b")")[2].split()[47:49])
    pairs = os.environ.items() if env is None else env.items()
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in pairs)
    ctypes.memmove(begin, shown[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
