"""The child processes of a node: new Python processes, or forks of the fork server."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from torch_edl.config.environment import ENV_PROCESS
from torch_edl.node.forks import ForkServer, module_server
from torch_edl.node.scripts import leading_imports
from torch_edl.processes.launcher import Command, ProcessExit, ProcessSpec
from torch_edl.processes.local import LocalLauncher, environment
from torch_edl.processes.process_group import ForkedGroup, GroupLeader, reap_orphans

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_MOST_CHARS = 300
# Seconds between two searches for ended orphans, whose parents were killed.
_REAP_S = 2.0
# Variables of torchrun and of ours, which differ between the processes of a script. They are not
# read while torch is imported.
_READ_LATER = {
    ENV_PROCESS,
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip


class Children(LocalLauncher):
    """Starts, watches and ends the processes of a node. Must be used from the main thread.

    Args:
        log_dir: folder for the log files of the processes; empty: their output goes to the output
            of this process, and each line is prefixed with the name of the process.
        job: name of the job, shown by ``ps``.
        forked: module whose processes are forked, and the arguments of its ``preload()``; or a
            script of the user, which is forked only if it cannot notice, see
            :mod:`torch_edl.node.scripts`. Empty: every process is a new program.
        wakes: receives an item when the fork server is ready, or cannot be used.
    """

    def __init__(
        self,
        log_dir: str | Path,
        *,
        job: str,
        forked: Sequence[str] | Command,
        wakes: SimpleQueue[None],
    ) -> None:
        # Guards _last_lines, which the threads that read the output of the children write.
        self._lock = threading.Lock()
        self._last_lines: dict[str, bytes] = {}
        super().__init__(log_dir, lines=None if log_dir else self._line)
        self._job, self._forked, self._wakes = job, forked, wakes
        self._server: ForkServer | None = None
        self._reap_at = 0.0
        self._serve()
        if self._server is not None:
            # This process becomes the parent of forked processes, and of orphans.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    @property
    def is_ready(self) -> bool:
        """False while the fork server imports: the processes that it forks should start later."""
        return self._server is None or not self._server.is_importing

    def is_ready_for(self, spec: ProcessSpec) -> bool:
        """Return whether this process can be started now: False while its fork server imports."""
        return self.is_ready or not self._is_forked(spec)

    def poll(self) -> list[ProcessExit]:
        now = time.monotonic()
        if now >= self._reap_at:
            self._reap_at = now + _REAP_S
            reap_orphans()
        return super().poll()

    def last_line(self, role: str, id: int) -> str:
        """Return the last output line of a process; empty if the process has a log file."""
        with self._lock:
            line = self._last_lines.get(f"{role}-{id}", b"")
        return line.decode("utf-8", "replace").strip()[:_MOST_CHARS]

    def stop_all(self, *, grace_s: float) -> None:
        super().stop_all(grace_s=grace_s)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _spawn(
        self, spec: ProcessSpec, env: Mapping[str, str], stdout: int, stderr: int
    ) -> GroupLeader:
        server = self._server if self._is_forked(spec) else None
        if server is not None and server.is_usable and self._fits(spec, env, server):
            try:
                return ForkedGroup(server.fork(spec.args, env, {1: stdout, 2: stderr}))
            except OSError as error:
                log.warning("%s is started as a new process, not forked: %s", spec.name, error)
                if not server.is_usable:
                    self._serve()
        return super()._spawn(spec, env, stdout, stderr)

    def _is_forked(self, spec: ProcessSpec) -> bool:
        """Return whether this process runs the program of the fork server."""
        if isinstance(self._forked, Command):
            return spec.command is not None and spec.command.words == self._forked.words
        return bool(self._forked) and spec.module == self._forked[0]

    def _fits(self, spec: ProcessSpec, env: Mapping[str, str], server: ForkServer) -> bool:
        """Return whether a fork may have this environment, which the server had at its imports."""
        if spec.command is None:
            return True
        names = env.keys() | server.env.keys()
        differing = {name for name in names if env.get(name) != server.env.get(name)}
        return differing <= _READ_LATER

    def _serve(self) -> None:
        def ready() -> None:
            self._wakes.put(None)

        if isinstance(self._forked, Command):
            command, env = self._forked.words, {**os.environ, **self._forked.env}
            if imports := leading_imports(command):
                self._server = ForkServer(command, env, imports=imports, ready=ready)
        elif self._forked:
            command = module_server(*self._forked, job=self._job)
            self._server = ForkServer(command, environment(), ready=ready)

    def _line(self, name: str, line: bytes) -> None:
        """Write an output line of a child to the output of this process, after the child's name."""
        with self._lock:
            self._last_lines[name] = line
            sys.stdout.buffer.write(name.encode() + b": " + line.rstrip(b"\n") + b"\n")
            sys.stdout.buffer.flush()
