"""The child processes of a node: new Python processes, or forks of the fork server."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from torch_edl.node.forks import ForkServer
from torch_edl.processes import process_group
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher, environment
from torch_edl.processes.process_group import ForkedGroup, GroupLeader

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36
_MOST_CHARS = 300


class Children(LocalLauncher):
    """Starts, watches and ends the processes of a node. Must be used from the main thread.

    Args:
        log_dir: folder for the log files of the processes; empty: their output goes to the output
            of this process, and each line is prefixed with the name of the process.
        job: name of the job, shown by ``ps``.
        forked: module whose processes are forked, and the arguments of its ``preload()``; empty:
            every process is a new Python process.
        wakes: receives an item when the fork server is ready, or cannot be used.
    """

    def __init__(
        self, log_dir: str | Path, *, job: str, forked: Sequence[str], wakes: SimpleQueue[None]
    ) -> None:
        # Guards _last_lines, which the threads that read the output of the children write.
        self._lock = threading.Lock()
        self._last_lines: dict[str, bytes] = {}
        super().__init__(log_dir, lines=None if log_dir else self._line)
        self._job, self._wakes = job, wakes
        self._forked, self._preload = (forked[0], forked[1:]) if forked else ("", ())
        self._server: ForkServer | None = None
        if forked:
            # This process becomes the parent of forked processes, and of orphans.
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._serve()

    def is_ready_for(self, module: str) -> bool:
        """Return whether a process of this module can be started now: False while the fork server
        for this module is importing."""
        return module != self._forked or self._server is None or not self._server.is_importing

    def last_line(self, role: str, id: int) -> str:
        """Return the last output line of a process; empty if the process has a log file."""
        with self._lock:
            line = self._last_lines.get(f"{role}-{id}", b"")
        return line.decode("utf-8", "replace").strip()[:_MOST_CHARS]

    def reap_orphans(self) -> None:
        """Reap ended orphans: processes that were forked by a child that has ended."""
        server = [self._server.pid] if self._server is not None else []
        process_group.reap_orphans([*server, *(each.child.pid for each in self._running.values())])

    def stop_all(self, *, grace_s: float) -> None:
        super().stop_all(grace_s=grace_s)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _spawn(
        self, spec: ProcessSpec, env: Mapping[str, str], stdout: int, stderr: int
    ) -> GroupLeader:
        forks = spec.module and spec.module == self._forked
        if forks and self._server is not None and self._server.is_usable:
            own = environment()
            added = {name: value for name, value in env.items() if own.get(name) != value}
            try:
                return ForkedGroup(self._server.fork(spec.args, added, stdout))
            except OSError as error:
                log.warning("%s is started as a new process, not forked: %s", spec.name, error)
                if not self._server.is_usable:
                    self._serve()
        return super()._spawn(spec, env, stdout, stderr)

    def _serve(self) -> None:
        self._server = ForkServer(
            self._forked,
            *self._preload,
            env=environment(),
            job=self._job,
            ready=lambda: self._wakes.put(None),
        )

    def _line(self, name: str, line: bytes) -> None:
        """Write an output line of a child to the output of this process, after the child's name."""
        with self._lock:
            self._last_lines[name] = line
            sys.stdout.buffer.write(name.encode() + b": " + line.rstrip(b"\n") + b"\n")
            sys.stdout.buffer.flush()
