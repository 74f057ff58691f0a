"""Find, watch and signal processes that outlived the process that started them.

A pid alone does not identify a process, because the kernel reuses pids. The pid together with the
start time from ``/proc/PID/stat`` is unique, and an open pidfd keeps pointing to the same process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from torch_edl.config.environment import ENV_PROCESS, ENV_TOKEN
from torch_edl.processes.child_group import GroupLeader

_PROC = Path("/proc")


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is not running."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # the name before ")" may contain any characters
    return 0 if fields[0] in "ZX" else int(fields[19])


def find(token: str) -> dict[str, tuple[int, int]]:
    """Find the processes of a job on this machine, by their names in the job (``worker-3``).

    Children of a process inherit its environment; the oldest process with a name is returned.

    Args:
        token: token of the job, which is different for every run.

    Returns:
        Pid and start time of each process.
    """
    ours, named = f"{ENV_TOKEN}={token}".encode(), f"{ENV_PROCESS}=".encode()
    found: dict[str, tuple[int, int]] = {}
    for entry in _PROC.iterdir():
        # The process may have ended meanwhile, or belong to another user.
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            variables = (entry / "environ").read_bytes().split(b"\0")
            if ours not in variables or os.getsid(pid) != pid:
                continue
            name = next((v.removeprefix(named) for v in variables if v.startswith(named)), b"")
            started = start_time(pid)
            before = found.get(name.decode())
            if name and started and (before is None or started < before[1]):
                found[name.decode()] = pid, started
    return found


class AdoptedGroup(GroupLeader):
    """A process that was started by another process, with the process group that it leads.

    Args:
        started: start time of the process, see :func:`start_time`.
    """

    def __init__(self, pid: int, started: int) -> None:
        super().__init__(pid)
        self._fd = -1
        self._is_over = False
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)
        # Read after the pidfd was opened: both refer to the same process.
        found = start_time(pid)
        if self._fd < 0 or found != started:
            self._end(kill=not found)  # a reused pid: not our group

    def ended(self) -> bool:
        if self._fd >= 0:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(0):
                self._end(kill=True)
        return self._is_over

    def _end(self, *, kill: bool) -> None:
        if kill:
            self.kill()
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._is_over = -1, True

    def _terminate(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if not self._is_over:
            super()._send(number)
