"""A process that leads a process group, to be ended together with everything that it forked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from typing import NoReturn


class GroupLeader(ABC):
    """A process and the process group that it leads. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        self._kill_at: float | None = None
        self.pid = pid
        self.stopping = False
        """True after :meth:`stop` was called."""

    @property
    def code(self) -> int | None:
        """Exit code of the ended process, -N if signal N ended it; None if it is unknown."""
        return None

    @abstractmethod
    def ended(self) -> bool:
        """Return True if the process ended; in that case, kill the rest of its group."""

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

    def kill_overdue(self, now: float) -> bool:
        """Kill the group if the grace of :meth:`stop` has expired; return True if it was killed."""
        if self._kill_at is None or now < self._kill_at:
            return False
        self._kill_at = None
        self.kill()
        return True

    def _terminate(self) -> None:
        """Send SIGTERM to the process, but not to the rest of its group."""
        os.kill(self.pid, signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class ChildGroup(GroupLeader):
    """A child of this process.

    Until the child is reaped, the kernel does not reuse its pid and process group, so signals
    cannot reach another process.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._process = process

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def ended(self) -> bool:
        return self.reap() is not None

    def reap(self, *, spare_forked: bool = False) -> int | None:
        """Return the exit code of the ended child, -N if signal N ended it; None while it runs.

        The rest of the group is killed before the child is reaped.

        Args:
            spare_forked: if the child ended by itself with exit code 0, do not kill the processes
                that it forked.
        """
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code of this process has reaped it
            return self._process.poll()
        if ended is None:
            return None
        if self.stopping or ended.si_status != 0 or not spare_forked:
            self.kill()
        return self._process.wait()


def end_own_group() -> NoReturn:
    """End this process at once with exit code 1, and its group if this process leads one."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
