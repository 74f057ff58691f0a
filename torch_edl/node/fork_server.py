"""The fork server: a process that imports everything that workers need, and then forks them.

    python -m torch_edl.node.fork_server --job NAME --module=MODULE [ARGS...]

MODULE has a function ``preload(*ARGS)``, which imports everything, and a function ``run()``, which
a forked process calls with its arguments in ``sys.argv``. The fork server of a script is a process
of the script itself; see :func:`hold`.

The environment names one end of a socket pair; :class:`torch_edl.node.forks.ForkServer` has the
other end. The server never starts a thread: a lock that another thread holds at the moment of a
fork would be locked for ever in the child.

The server forks twice for each process, and the intermediate process exits at once. The node is a
subreaper (prctl(2)), so it becomes the parent of the forked process and receives the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from torch_edl.node import scripts
from torch_edl.processes.exec_child import end_with

ENV_LINK = "TORCH_EDL_FORK_SERVER"
"""Variable with the number of the file descriptor of the socket."""
ENV_IMPORTS = "TORCH_EDL_FORK_SERVER_IMPORTS"
"""Variable with the modules that the fork server of a script imports, separated by spaces."""

_MOST_BYTES = 1 << 20
_MOST_FILES = 64
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_ADOPTED_POLL_S = 0.0002


def main() -> None:
    """Serve until the node closes the socket; in a forked process, run the module."""
    node = os.getppid()
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", help="name of the job, shown by ps")
    parser.add_argument("--module", required=True)
    parser.add_argument("preload", nargs="*")
    args = parser.parse_args()
    module: str = args.module
    link = socket.socket(fileno=int(os.environ.pop(ENV_LINK)))
    gc.disable()  # imports create no garbage
    program = importlib.import_module(module)
    program.preload(*args.preload)
    if (order := _serve(link, node, _refusal())) is not None:
        _become(program, order)


def hold(startup: str, built_in: Collection[str]) -> None:
    """Make this process the fork server of its own script, and return in each forked process, in
    which Python then begins the script as in any other process: with the same ``__main__``,
    arguments, flags and tracebacks.

    Only imports that are the first statements of the script come before the fork; see
    :func:`torch_edl.node.scripts.leading_imports`.

    Args:
        startup: folder in PYTHONPATH from which Python has imported ``sitecustomize``.
        built_in: names of the modules that Python itself has imported.
    """
    node, link = os.getppid(), socket.socket(fileno=int(os.environ.pop(ENV_LINK)))
    before = os.environ.pop("PYTHONPATH").removeprefix(startup).removeprefix(os.pathsep)
    if before:
        os.environ["PYTHONPATH"] = before
    sys.path.remove(startup)
    sys.path_importer_cache.pop(startup, None)
    _name_process([sys.executable, "-m", __name__])
    gc.disable()
    for module in os.environ.pop(ENV_IMPORTS).split():
        importlib.import_module(module)
    order = _serve(link, node, _refusal() or _visible(built_in))
    if order is None:
        os._exit(0)
    _enter(order)
    # Python has made this stream for the output of the server.
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    _name_process(sys.orig_argv)


def _visible(built_in: Collection[str]) -> str:
    """Return what a forked script could notice of the early imports; empty if nothing."""
    if os.fstat(1).st_size:
        return "there was output, which each process of the script should print"
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    monitors = monitoring and any(monitoring.get_tool(number) for number in range(6))
    if sys.gettrace() or sys.getprofile() or monitors:
        return "a tracer or a profiler runs"
    script = sys.orig_argv[2]
    folder = os.getcwd() if script == "-m" else scripts.script_folder(script)
    for name in {module.partition(".")[0] for module in set(sys.modules).difference(built_in)}:
        users = PathFinder.find_spec(name, [folder])
        imported = getattr(sys.modules.get(name), "__spec__", None)
        if users is None or users.loader is None:
            continue  # a folder without __init__.py comes after all other modules of its name
        if users.origin != getattr(imported, "origin", None):
            return f"{users.origin} would come before the module of that name"
    return ""


def _refusal() -> str:
    """Return the reason why this process must not fork; empty if it may. Threads and open GPU
    devices of this process would not work in a child.

    Threads of OpenBLAS do not count: OpenBLAS ends them before a fork, and starts them again when
    they are needed. The fork below makes it end them.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if threads := len(os.listdir("/proc/self/task")) - 1:
        return f"{threads} threads run"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing is closed by now
            if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(_GPUS):
                return f"{path} is open"
    return ""


def _serve(link: socket.socket, node: int, refusal: str) -> dict[str, Any] | None:
    """Fork a process for each order of the node. In a forked process, return the order; in the fork
    server, return None after the node has closed the socket, or if there is a refusal."""
    if refusal:
        _send(link, {"refused": f"after the imports, {refusal}"})
        return None
    # The garbage collector of a child then ignores the objects from before the fork. A visit writes
    # to an object, so the kernel would have to copy its page.
    gc.freeze()
    _send(link, {"ready": True})
    while True:
        message, files, _, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_FILES)
        if not message:
            return None
        order: dict[str, Any] = json.loads(message)
        try:
            pid = _fork(node)
        except OSError as error:
            _send(link, {"error": f"fork: {error.strerror}"})
        else:
            if pid is None:
                link.close()
                _number(files, order["files"])
                return order
            _send(link, {"pid": pid})
        for fd in files:
            os.close(fd)


def _fork(node: int) -> int | None:
    """Fork a process that becomes a child of the node. Returns the pid of the new process in the
    fork server, and None in the new process."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            if os.fork():
                os._exit(0)
            # Before the pid is sent: the node may then send signals to the process group.
            os.setsid()
            os.write(write, str(os.getpid()).encode())
            _wait_for_parent(os.getppid() if os.getppid() != node else 0, node)
        except BaseException:
            os._exit(1)
        os.close(read)
        os.close(write)
        return None
    os.close(write)
    os.waitpid(between, 0)
    with open(read, "rb") as pipe:
        pid = pipe.read()
    if not pid:
        raise OSError(0, "the forked process ended")
    return int(pid)


def _number(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Give open files other numbers of file descriptors, which children of this process inherit."""
    # A file may have a number that another one is to get.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for fd in files]
    for fd in files:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def _wait_for_parent(between: int, node: int) -> None:
    """Wait until the node is the parent of this process. Then let the kernel kill this process when
    the node ends, as :mod:`torch_edl.processes.exec_child` does."""
    while between and os.getppid() == between:
        time.sleep(_ADOPTED_POLL_S)
    end_with(node, signal.SIGKILL)


def _become(program: ModuleType, order: dict[str, Any]) -> None:
    """Run the program in a forked process, as ``python -m`` does in a new one."""
    _enter(order)
    name = program.__name__
    sys.argv = [str(program.__file__), *order["args"]]
    # Processes of multiprocessing import the main module of their parent.
    sys.modules["__main__"] = program
    _name_process([sys.executable, "-m", name, *order["args"]])
    program.run()


def _enter(order: dict[str, Any]) -> None:
    """Give a forked process its own environment and state."""
    for name in order["unset"]:
        del os.environ[name]
    os.environ.update(order["env"])
    # Python reseeds its random generator after a fork. numpy and torch do not: all forked processes
    # would draw the same numbers.
    with contextlib.suppress(KeyError):
        sys.modules["numpy.random"].seed()
    with contextlib.suppress(KeyError):
        sys.modules["torch"].default_generator.seed()
    # Python 3.11 and 3.12 keep the id of the server.
    threading.current_thread()._native_id = threading.get_native_id()  # type: ignore[attr-defined]
    gc.enable()


def _name_process(words: list[str]) -> None:
    """Replace the command line of this process, which tools such as ps show. The memory has the
    size of the command line of the fork server; a longer one is cut."""
    with open("/proc/self/stat", "rb") as file:
        begin, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    if end > begin > 0:
        command = b"".join(os.fsencode(word) + b"\0" for word in words)
        ctypes.memmove(begin, command[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode())


if __name__ == "__main__":
    main()
