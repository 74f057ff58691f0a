"""Child processes that lead a process group and are ended with everything that they forked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import NoReturn

_PROC = Path("/proc")


class GroupLeader(ABC):
    """A child of this process, and the process group that it leads. Not thread-safe.

    Until the child is reaped, the kernel does not reuse its pid and process group, so signals
    cannot reach another process.
    """

    def __init__(self, pid: int) -> None:
        self._kill_at: float | None = None
        self.pid = pid
        _leaders[pid] = self
        self.stopping = False
        """True after :meth:`stop` was called."""

    @property
    @abstractmethod
    def code(self) -> int | None:
        """Exit code of the ended process, -N if signal N ended it; None before it is reaped."""

    @abstractmethod
    def _wait(self) -> int:
        """Reap the ended process and return its exit code."""

    def reap(self, *, spare_forked: bool = False) -> int | None:
        """Return the exit code of the ended child, -N if signal N ended it; None while it runs.

        The rest of the group is killed before the child is reaped.

        Args:
            spare_forked: if the child ended by itself with exit code 0, do not kill the processes
                that it forked.
        """
        if self.code is not None:
            return self.code
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code of this process has reaped it
            return self._wait()
        if ended is None:
            return None
        if self.stopping or ended.si_status != 0 or not spare_forked:
            self.kill()
        return self._wait()

    def stop(self, *, grace_s: float, now: float, whole_group: bool = False) -> None:
        """Send SIGTERM; :meth:`kill_overdue` sends SIGKILL ``grace_s`` later.

        A grace of 0 sends SIGKILL at once. A second call may shorten the grace, but not extend it.

        Args:
            whole_group: send SIGTERM to the processes that the child forked, too.
        """
        asked, self.stopping = self.stopping, True
        if grace_s <= 0:
            self._kill_at = None
            self.kill()
            return
        if not asked:
            if whole_group:
                self._send(signal.SIGTERM)
            else:
                self._terminate()
            self._kill_at = now + grace_s
        elif self._kill_at is not None:
            self._kill_at = min(self._kill_at, now + grace_s)

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        self._send(signal.SIGKILL)

    def end(self) -> None:
        """Kill the group, and wait for the end of the child."""
        if self.code is None:
            self.kill()
            self._wait()

    def kill_overdue(self, now: float) -> bool:
        """Kill the group if the grace of :meth:`stop` has expired; return True if it was killed."""
        if self._kill_at is None or now < self._kill_at:
            return False
        self._kill_at = None
        self.kill()
        return True

    def _terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


# By pid: the children of this process that lead a group, as long as somebody refers to them.
_leaders: weakref.WeakValueDictionary[int, GroupLeader] = weakref.WeakValueDictionary()


class ChildGroup(GroupLeader):
    """A child that this process started as a new program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._process = process

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def _wait(self) -> int:
        return self._process.wait()


class ForkedGroup(GroupLeader):
    """A child that the fork server forked."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self._code: int | None = None

    @property
    def code(self) -> int | None:
        return self._code

    def _wait(self) -> int:
        try:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # other code of this process has reaped it
            self._code = 1
        return self._code


def end_own_group() -> NoReturn:
    """End this process at once with exit code 1, and its group if this process leads one."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; 0 if it is not running."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def reap_orphans() -> None:
    """Reap ended processes that this process did not start, such as those that a killed child had
    forked. Process 1 of a container becomes their parent, and they stay as zombies otherwise.

    Children of this process that lead a group need a :class:`GroupLeader`, and are not reaped.
    """
    own, group = os.getpid(), os.getpgid(0)
    leaders = (reference() for reference in _leaders.valuerefs())
    children = {leader.pid for leader in leaders if leader is not None and leader.code is None}
    for entry in _PROC.iterdir():
        # The process may have ended meanwhile.
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            if pid in children:
                continue
            state, parent, its_group = _stat(pid)[:3]
            # Other children of this process are in its own group.
            if (state, int(parent)) == ("Z", own) and int(its_group) != group:
                os.waitpid(pid, os.WNOHANG)


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, from the state on."""
    stat = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()  # the name before ")" may contain any characters
