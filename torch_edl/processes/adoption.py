"""Processes that outlive the one that started them: found again, watched and signalled.

A pid alone names nobody: the kernel gives it to another process later. The time at which the
process started, as ``/proc/PID/stat`` says it, makes it unique, and a pidfd keeps it so.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from torch_edl.environment import ENV_PROCESS, ENV_TOKEN
from torch_edl.processes.child_group import Group

_PROC = Path("/proc")


def start_time(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0: no such process runs."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()  # the name before may have any characters
    return 0 if fields[0] in "ZX" else int(fields[19])


def find(token: str) -> dict[str, tuple[int, int]]:
    """The processes of a job that run on this machine, by their names in the job (``worker-3``).

    What they started themselves inherits their environment, and is younger.

    Args:
        token: of the job, which no other run of it has.

    Returns:
        Pid and start time of each.
    """
    ours, named = f"{ENV_TOKEN}={token}".encode(), f"{ENV_PROCESS}=".encode()
    found: dict[str, tuple[int, int]] = {}
    for entry in _PROC.iterdir():
        # Gone meanwhile, or another user's.
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


class AdoptedGroup(Group):
    """A process that another one started, and the process group that it leads.

    Args:
        started: see :func:`start_time`.
    """

    def __init__(self, pid: int, started: int) -> None:
        super().__init__(pid)
        self._fd = -1
        self._is_over = False
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)
        # Asked after the pidfd was opened: they are of one process.
        found = start_time(pid)
        if self._fd < 0 or found != started:
            self._end(kill=not found)  # otherwise the pid, and its group, are another's

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
