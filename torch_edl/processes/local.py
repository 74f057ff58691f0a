"""Launcher for processes of this machine."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from torch_edl.config.environment import ENV_PROCESS
from torch_edl.processes import exec_child
from torch_edl.processes.launcher import ProcessExit, ProcessSpec
from torch_edl.processes.oom_kills import OOM_KILLED, OomKills
from torch_edl.processes.process_group import ChildGroup, GroupLeader

log = logging.getLogger(__name__)

_STOP_ALL_POLL_S = 0.02
# Time to read the last output of ended processes, since their forked children may still write.
_LAST_LINES_S = 1.0
_MOST_BYTES = 64 << 10

Lines = Callable[[str, bytes], None]
"""Called with the name of a process, ``worker-3``, and one line of its output."""


class LocalLauncher:
    """Starts one subprocess for each spec and reports its end.

    Each process leads its own session: Ctrl-C in a terminal reaches only the client, and the
    processes that it forked (such as workers of a DataLoader) are ended together with it. Output is
    appended to ``<log_dir>/<role>-<id>.log``.

    Only the main thread may use it, because children end with the *thread* that forked them, see
    :mod:`torch_edl.processes.exec_child`.

    Args:
        lines: receives the output instead of log files; called in one thread for each process.
    """

    def __init__(self, log_dir: str | Path = "", *, lines: Lines | None = None) -> None:
        self._log_dir = Path(log_dir)
        self._lines = lines
        self._readers: list[threading.Thread] = []
        self._running: dict[tuple[str, int], GroupLeader] = {}
        self._oom_kills = OomKills()

    def start(self, spec: ProcessSpec) -> int:
        """Start a process, from the main thread only; see :class:`Launcher`."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("LocalLauncher.start: call it from the main thread")
        key = (spec.role, spec.id)
        assert key not in self._running, f"{spec.name} was started before"
        env = {**environment(), ENV_PROCESS: spec.name, **spec.env}
        with self._output(spec) as output:
            child = self._running[key] = self._spawn(spec, env, output)
        return child.pid

    def _spawn(self, spec: ProcessSpec, env: Mapping[str, str], output: IO[bytes]) -> GroupLeader:
        # -P: a folder `master` in the working directory must not be imported instead of ours.
        command = [sys.executable, "-P", "-m", spec.module, *spec.args]
        if spec.end_with_parent:
            command = exec_child.words(command, spec.end_with_parent)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
        return ChildGroup(process)

    def poll(self) -> list[ProcessExit]:
        """Report each process that ended since the last call; kill those whose grace expired."""
        ended = []
        now = time.monotonic()
        self._oom_kills.look(now)
        for (role, id), child in list(self._running.items()):
            if child.kill_overdue(now):
                log.warning("%s-%d did not end in time: it was killed", role, id)
            if not child.ended():
                continue
            del self._running[role, id]
            code = child.code
            assert code is not None, f"{role}-{id} ended"
            if code == -signal.SIGKILL and self._oom_kills.are_new():
                why, number = OOM_KILLED, -code
                ended.append(ProcessExit(role=role, id=id, signal=number, why=why, own_fault=True))
            elif code < 0:
                ended.append(ProcessExit(role=role, id=id, signal=-code))
            else:
                ended.append(ProcessExit(role=role, id=id, code=code))
        return ended

    def stop(self, role: str, id: int, *, grace_s: float) -> None:
        """Send SIGTERM to a process; :meth:`poll` kills its session ``grace_s`` seconds later."""
        child = self._running.get((role, id))
        if child is not None:
            child.stop(grace_s=grace_s, now=time.monotonic())

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


def environment() -> dict[str, str]:
    """Return the environment variables for child processes: those of this process, and settings of
    Python and gRPC."""
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
