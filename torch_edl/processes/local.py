"""Launcher for processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torch_edl.config.environment import ENV_PROCESS
from torch_edl.processes import exec_child
from torch_edl.processes.launcher import ProcessExit, ProcessSpec
from torch_edl.processes.oom_kills import OOM_KILLED, OomKills
from torch_edl.processes.process_group import ChildGroup, GroupLeader
from torch_edl.processes.script_marks import open_loop

log = logging.getLogger(__name__)

_STOP_ALL_POLL_S = 0.02
# Time to read the last output of ended processes, since their forked children may still write.
_LAST_LINES_S = 1.0
_MOST_BYTES = 64 << 10

Lines = Callable[[str, bytes], None]
"""Called with the name of a process, ``worker-3``, and one line of its output."""


@dataclass(frozen=True)
class _Running:
    spec: ProcessSpec
    child: GroupLeader


class LocalLauncher:
    """Starts one subprocess for each spec and reports its end.

    Each process leads its own session: Ctrl-C in a terminal reaches only the client, and the
    processes that it forked (such as workers of a DataLoader) are ended together with it. The
    output of a module is appended to ``<log_dir>/<role>-<id>.log``.

    Only the main thread may use it, because children end with the *thread* that forked them, see
    :mod:`torch_edl.processes.exec_child`.

    Args:
        lines: receives the output instead of log files; called in one thread for each process.
    """

    def __init__(self, log_dir: str | Path = "", *, lines: Lines | None = None) -> None:
        self._log_dir = Path(log_dir)
        self._lines = lines
        self._readers: list[threading.Thread] = []
        self._running: dict[tuple[str, int], _Running] = {}
        self._oom_kills = OomKills()

    def start(self, spec: ProcessSpec) -> int:
        """Start a process, from the main thread only; see :class:`Launcher`."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("LocalLauncher.start: call it from the main thread")
        key = (spec.role, spec.id)
        assert key not in self._running, f"{spec.name} was started before"
        with self._outputs(spec) as (stdout, stderr):
            child = self._spawn(spec, environment_of(spec), stdout, stderr)
        self._running[key] = _Running(spec, child)
        return child.pid

    def _spawn(
        self, spec: ProcessSpec, env: Mapping[str, str], stdout: int, stderr: int
    ) -> GroupLeader:
        if spec.command is not None:
            command = list(spec.command.words)
        else:
            # -P: a folder `master` in the working directory must not be imported instead of ours.
            command = [sys.executable, "-P", "-m", spec.module, *spec.args]
        if spec.end_with_parent:
            command = exec_child.words(command, spec.end_with_parent)
        process = subprocess.Popen(
            command,
            stdin=None if spec.command is not None else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            env=env,
        )
        return ChildGroup(process)

    def poll(self) -> list[ProcessExit]:
        """Report each process that ended since the last call; kill those whose grace expired."""
        ended = []
        now = time.monotonic()
        self._oom_kills.look(now)
        for key, running in list(self._running.items()):
            spec, child = running.spec, running.child
            if child.kill_overdue(now):
                log.warning("%s (pid %d) did not end in time: it was killed", spec.name, child.pid)
            code = child.reap(spare_forked=spec.command is not None)
            if code is not None:
                del self._running[key]
                ended.append(self._exit(spec, code))
        return ended

    def _exit(self, spec: ProcessSpec, code: int) -> ProcessExit:
        role, id = spec.role, spec.id
        if code == -signal.SIGKILL and self._oom_kills.are_new():
            return ProcessExit(role=role, id=id, signal=-code, why=OOM_KILLED, own_fault=True)
        if code < 0:
            return ProcessExit(role=role, id=id, signal=-code)
        marked = code == 0 and spec.command is not None and spec.command.error_file
        return ProcessExit(
            role=role, id=id, code=code, open_loop=open_loop(marked) if marked else None
        )

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Send SIGTERM to a process; :meth:`poll` kills its session ``grace_s`` seconds later."""
        running = self._running.get((role, id))
        if running is not None:
            command = running.spec.command
            running.child.stop(
                grace_s=grace_s,
                now=time.monotonic(),
                whole_group=command is not None and command.terminates_group,
            )

    @property
    def is_running(self) -> bool:
        """True while a process runs whose end :meth:`poll` has not returned."""
        return bool(self._running)

    def stop_all(self, *, grace_s: float) -> None:
        """End every process and wait until all have ended."""
        for role, id in list(self._running):
            self.stop(role, id, grace_s=grace_s)
        while self._running:
            self.poll()
            time.sleep(_STOP_ALL_POLL_S)
        deadline = time.monotonic() + _LAST_LINES_S
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def log_path(self, role: str, id: int) -> str:
        """Return the log file of a process."""
        return str(self._log_dir / f"{role}-{id}.log")

    @contextlib.contextmanager
    def _outputs(self, spec: ProcessSpec) -> Iterator[tuple[int, int]]:
        """Open the files for stdout and stderr of a process."""
        with contextlib.ExitStack() as files:
            if spec.command is None:
                fd = files.enter_context(self._output(spec)).fileno()
                yield fd, fd
                return
            wanted = (spec.command.stdout, 1), (spec.command.stderr, 2)
            stdout, stderr = (
                files.enter_context(open(path, "wb")).fileno() if path else inherited
                for path, inherited in wanted
            )
            yield stdout, stderr

    def _output(self, spec: ProcessSpec) -> IO[bytes]:
        if self._lines is None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            return open(self.log_path(spec.role, spec.id), "ab")
        read, write = os.pipe()
        words = (spec.name, open(read, "rb"))  # noqa: SIM115 - the thread closes it
        reader = threading.Thread(target=self._read, args=words, name="lines", daemon=True)
        self._readers = [each for each in self._readers if each.is_alive()] + [reader]
        reader.start()
        return open(write, "wb", buffering=0)

    def _read(self, name: str, output: IO[bytes]) -> None:
        assert self._lines is not None
        with output:
            while line := output.readline(_MOST_BYTES):
                self._lines(name, line)


def environment_of(spec: ProcessSpec) -> dict[str, str]:
    """Return the environment variables of a process."""
    if spec.command is not None:
        return {**os.environ, **spec.command.env}
    return {**environment(), ENV_PROCESS: spec.name, **spec.env}


def environment() -> dict[str, str]:
    """Return the environment variables for processes of our modules: those of this process, and
    settings of Python and gRPC."""
    env = {
        # gRPC logs each failed handshake, so clients without a certificate could fill the disk.
        "GRPC_VERBOSITY": "ERROR",
        **os.environ,
        # Without a buffer, the output of a killed process is not lost.
        "PYTHONUNBUFFERED": "1",
    }
    # Children of a source checkout must import this checkout. An installed package is found without
    # PYTHONPATH, and site-packages must not come before the standard library.
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(root)]))
    return env
