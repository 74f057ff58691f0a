"""The client of the fork server: starts the server, and asks it for forks."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_edl.processes import exec_child

log = logging.getLogger(__name__)

# Timeout of one fork, seconds. A fork takes milliseconds.
_FORK_S = 30.0
_MOST_BYTES = 1 << 16


class ForkServer:
    """A process that forks processes of one module, see :mod:`torch_edl.node.fork_server`.

    Must be created in the main thread: the kernel kills the server when the thread that started it
    ends.

    Args:
        module: the module that forked processes run.
        preload: arguments of the module's ``preload()``.
        env: environment of the server and of the forked processes; :meth:`fork` adds variables.
        job: name of the job, shown by ``ps``.
        ready: called in another thread when the server has imported everything, or cannot be used.
    """

    def __init__(
        self,
        module: str,
        *preload: str,
        env: Mapping[str, str],
        job: str,
        ready: Callable[[], None],
    ) -> None:
        self.is_importing = True
        """True until the server is ready to fork, or cannot be used."""
        self.is_usable = False
        """True while the server can fork."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        command = [sys.executable, "-P", "-m", "torch_edl.node.fork_server"]
        # One word: whoever looks for processes of the module by that word does not find the server.
        command += ["--job", job, "--fd", str(fd), f"--module={module}", *preload]
        with theirs:
            self._process = subprocess.Popen(
                exec_child.words(command),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[fd],
                env=dict(env),
            )
        self._ready = ready
        threading.Thread(target=self._await_imports, name="imports", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def fork(self, args: Sequence[str], env: Mapping[str, str], output: int) -> int:
        """Fork a process with these arguments and additional variables; return its pid.

        The process is a child of this one, leads its own session, writes to the file descriptor
        ``output``, and gets SIGKILL when this process ends.

        Raises:
            OSError: the server cannot fork. A server that does not answer is killed.
        """
        message = json.dumps({"args": list(args), "env": dict(env)}).encode()
        try:
            self._link.settimeout(_FORK_S)
            socket.send_fds(self._link, [message], [output])
            answer = self._receive()
        except OSError:
            self.close()
            raise
        if "pid" not in answer:
            raise OSError(answer["error"])
        return int(answer["pid"])

    def close(self) -> None:
        """Kill the server; forked processes continue."""
        self.is_importing = self.is_usable = False
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._link.close()

    def _await_imports(self) -> None:
        try:
            answer = self._receive()
        except OSError as error:
            answer = {"refused": str(error)}
        if "refused" in answer and self.is_importing:
            log.warning("workers are started without a fork server: %s", answer["refused"])
        self.is_usable = self.is_importing and "ready" in answer
        self.is_importing = False
        self._ready()

    def _receive(self) -> dict[str, Any]:
        """Return the next message of the server; OSError if it has ended."""
        message = self._link.recv(_MOST_BYTES)
        if not message:
            raise ConnectionResetError("the fork server ended")
        answer: dict[str, Any] = json.loads(message)
        return answer
