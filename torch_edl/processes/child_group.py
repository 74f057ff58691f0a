"""A process that leads a process group: signalled, and ended with everything that it forked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from typing import NoReturn


class Group(ABC):
    """A process and the process group that it leads. Not thread-safe."""

    def __init__(self, pid: int) -> None:
        self._kill_at: float | None = None
        self.pid = pid
        self.stopping = False
        """The process was told to end by :meth:`stop`."""

    @property
    def code(self) -> int | None:
        """The exit code of a process that ended, -N where signal N ended it; None: not known."""
        return None

    @abstractmethod
    def ended(self) -> bool:
        """Whether the process ended; what is left of its group is killed then."""

    def stop(self, *, grace_s: float, now: float, whole_group: bool = False) -> None:
        """Sends SIGTERM, and SIGKILL ``grace_s`` later (by :meth:`kill_overdue`); a grace of 0 is
        SIGKILL at once. Another call may shorten the grace, never lengthen it.

        Args:
            whole_group: SIGTERM goes to what the child forked as well.
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
        """Sends SIGKILL to the whole group."""
        self._send(signal.SIGKILL)

    def kill_overdue(self, now: float) -> bool:
        """Kills the group if the grace of :meth:`stop` has just expired; tells whether it did."""
        if self._kill_at is None or now < self._kill_at:
            return False
        self._kill_at = None
        self.kill()
        return True

    def _terminate(self) -> None:
        """Sends SIGTERM to the process alone."""
        os.kill(self.pid, signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class ChildGroup(Group):
    """A child of this process. Until it is reaped its pid and the number of its group are its own,
    so that signals reach nobody else."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._process = process

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def ended(self) -> bool:
        return self.reap() is not None

    def reap(self, *, spare_forked: bool = False) -> int | None:
        """The exit code of a child that ended, -N where signal N ended it; None while it runs.

        What is left of the group is killed before the child is reaped.

        Args:
            spare_forked: leave what a child forked that ended by itself with exit code 0.
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
    """Ends this process at once, with exit code 1; and what it forked, if it leads a group."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
