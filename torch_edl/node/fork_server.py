"""A fork server: a process that has imported what workers need, and forks them.

    python -m torch_edl.node.fork_server --job NAME FD MODULE

MODULE has a function ``preload()``, which imports everything, and a function ``run()``, which a
forked process calls with its arguments in ``sys.argv``. FD is one end of a socket whose other end
:class:`torch_edl.node.forks.ForkServer` has. The server never starts a thread: a lock that another
thread holds at the moment of a fork would be locked for ever in the child.

A forked process becomes a child of the node, which thereby learns its exit code: the process in
between ends at once, and the node is a subreaper (prctl(2)).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 20
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
_ADOPTED_POLL_S = 0.0002


def main() -> None:
    """Serve until the node closes the socket; in a forked process, run the module."""
    node = os.getppid()
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", help="name of the job, for those who list processes")
    parser.add_argument("fd", type=int)
    parser.add_argument("module")
    args = parser.parse_args()
    module: str = args.module
    link = socket.socket(fileno=args.fd)
    # The handlers of the node are for the node.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    gc.disable()  # imports make no garbage
    program = importlib.import_module(module)
    program.preload()
    if refusal := _refusal():
        _send(link, {"refused": f"after the imports of {module}, {refusal}"})
        return
    # Objects from before the fork are not visited by the collector of a child, which would copy
    # their pages.
    gc.freeze()
    _send(link, {"ready": True})
    if (order := _serve(link, node)) is not None:
        _become(program, order)


def _refusal() -> str:
    """Return why this process must not be forked: its threads, and its connections to a GPU, would
    not work in a child. Empty if it may be forked.

    Threads of OpenBLAS do not count: its handler of forks ends them, and starts them when needed.
    """
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if threads := len(os.listdir("/proc/self/task")) - 1:
        return f"{threads} threads run"
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder itself, which is closed again
            if (path := os.readlink(f"/proc/self/fd/{fd}")).startswith(_GPUS):
                return f"{path} is open"
    return ""


def _serve(link: socket.socket, node: int) -> dict[str, Any] | None:
    """Fork a process for each order. Returns the order in a forked process; None in this one, after
    the node has closed the socket."""
    while True:
        message, fds, _, _ = socket.recv_fds(link, _MOST_BYTES, 1)
        if not message:
            return None
        [output] = fds
        order: dict[str, Any] = json.loads(message)
        try:
            pid = _fork(node, output)
        except OSError as error:
            _send(link, {"error": f"fork: {error.strerror}"})
        else:
            if pid is None:
                link.close()
                return order
            _send(link, {"pid": pid})
        os.close(output)


def _fork(node: int, output: int) -> int | None:
    """Fork a process that the node adopts. Returns its pid, and None in the process itself."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            if os.fork():
                os._exit(0)
            # The order matters: the node may send signals to the group once it has the pid.
            os.setsid()
            _redirect(output)
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


def _redirect(output: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)


def _wait_for_parent(between: int, node: int) -> None:
    """Wait until the node is the parent of this process, then end with the node, as
    :mod:`torch_edl.processes.exec_child` does."""
    while between and os.getppid() == between:
        time.sleep(_ADOPTED_POLL_S)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != node:
        os._exit(1)


def _become(program: ModuleType, order: dict[str, Any]) -> None:
    """Run the program in a forked process, as ``python -m`` does in a new one."""
    os.environ.update(order["env"])
    name = program.__name__
    sys.argv = [str(program.__file__), *order["args"]]
    # Processes of multiprocessing import the main module of their parent.
    sys.modules["__main__"] = program
    # Python's own generator has a new state after a fork; that of numpy would be equal in all.
    with contextlib.suppress(KeyError):
        sys.modules["numpy.random"].seed()
    _set_title([sys.executable, "-m", name, *order["args"]])
    program.run()


def _set_title(words: list[str]) -> None:
    from setproctitle import setproctitle

    setproctitle(" ".join(words))


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    link.sendall(json.dumps(message).encode())


if __name__ == "__main__":
    main()
