"""The client of the fork server: starts the server, and asks it for forks."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_edl.node import fork_server
from torch_edl.node.fork_server import ENV_IMPORTS, ENV_LINK
from torch_edl.processes import exec_child
from torch_edl.processes.process_group import ChildGroup

log = logging.getLogger(__name__)

# Timeout of one fork, seconds. A fork takes milliseconds.
_FORK_S = 30.0
_MOST_BYTES = 1 << 16
_STARTUP = Path(__file__).with_name("startup")


def module_server(module: str, *preload: str, job: str) -> list[str]:
    """Return the command line of the fork server of a module of ours.

    Args:
        preload: arguments of the module's ``preload()``.
        job: name of the job, shown by ``ps``.
    """
    # One word: whoever looks for processes of the module by that word does not find the server.
    words = ["--job", job, f"--module={module}", *preload]
    return [sys.executable, "-P", "-m", fork_server.__name__, *words]


class ForkServer:
    """A process that forks processes of one program, see :mod:`torch_edl.node.fork_server`.

    Must be created in the main thread: the kernel kills the server when the thread that started it
    ends.

    Args:
        command: the command line of the server.
        env: environment of the server.
        imports: modules that the server of a script imports; empty for a module of ours, which
            knows them.
        ready: called in another thread when the server has imported everything, or cannot be used.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        imports: Sequence[str] = (),
        ready: Callable[[], None],
    ) -> None:
        self.is_importing = True
        """True until the server is ready to fork, or cannot be used."""
        self.is_usable = False
        """True while the server can fork."""
        # The server of a script cannot tell an empty PYTHONPATH from none.
        self.env = {name: env[name] for name in env if env[name] or name != "PYTHONPATH"}
        """Environment of the server, without the variables that only the server needs."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        own = {**env, ENV_LINK: str(fd)}
        if imports:
            path = [str(_STARTUP), *filter(None, [env.get("PYTHONPATH")])]
            own |= {ENV_IMPORTS: " ".join(imports), "PYTHONPATH": os.pathsep.join(path)}
        with theirs, contextlib.ExitStack() as files:
            output = files.enter_context(tempfile.TemporaryFile()) if imports else None
            process = subprocess.Popen(
                exec_child.words(list(command)),
                # A process of a script inherits stdin. What its server writes is not shown.
                stdin=None if imports else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=[fd],
                env=own,
            )
        self._leader = ChildGroup(process)
        self._ready, self._is_of_script = ready, bool(imports)
        threading.Thread(target=self._await_imports, name="imports", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._leader.pid

    def fork(self, args: Sequence[str], env: Mapping[str, str], files: Mapping[int, int]) -> int:
        """Fork a process with these arguments and this environment; return its pid.

        The process is a child of this one, leads its own session, and gets SIGKILL when this
        process ends.

        Args:
            files: open files by the number of their file descriptor in the new process: 1 is
                stdout, 2 is stderr. Others are those of the server.

        Raises:
            OSError: the server cannot fork. A server that does not answer is killed.
        """
        added = {name: value for name, value in env.items() if self.env.get(name) != value}
        unset = sorted(self.env.keys() - env.keys())
        order = {"args": list(args), "env": added, "unset": unset, "files": list(files)}
        try:
            self._link.settimeout(_FORK_S)
            socket.send_fds(self._link, [json.dumps(order).encode()], list(files.values()))
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
        self._leader.end()
        self._link.close()

    def _await_imports(self) -> None:
        try:
            answer = self._receive()
        except OSError as error:
            answer = {"refused": str(error)}
        if "refused" in answer and self.is_importing:
            level = logging.DEBUG if self._is_of_script else logging.WARNING
            log.log(level, "workers are started without a fork server: %s", answer["refused"])
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
