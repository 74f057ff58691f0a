"""The master of a job as a child process: start, watch, restart and stop it."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from collections.abc import Callable, Mapping

from torch_edl.config.environment import ENV_TOKEN
from torch_edl.errors import EdlError, JobFailedError, UsageError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.logs import last_error, last_lines
from torch_edl.processes.launcher import ProcessExit, ProcessSpec
from torch_edl.processes.local import LocalLauncher

log = logging.getLogger(__name__)

USAGE_CODE = 2
"""Exit code of a master if the user can fix the cause."""
SUPERSEDED = 3
"""Exit code of a master if another master has taken over the job and its processes."""

_LISTEN_TIMEOUT_S = 60.0
_POLL_S = 0.02
_TAIL_LINES = 15
# A master that ends this often before a node reaches it is not restarted.
_MAX_STARTS_IN_A_ROW = 5


class MasterProcess:
    """The master process of a job. The job counts as watched until :meth:`close`.

    Must be used from the main thread, as :class:`LocalLauncher`.

    Args:
        token: token of the job; empty to create one.
        listen: ``host:port``; port 0 binds a free port, which a restarted master keeps. Empty for
            a free port of the loopback interface.
        env: additional environment variables, inherited by the processes of the master.
        follows: True if the master ends with this process; False if it runs until all agents left.
        continues: True if the job has failed and is to continue.
    """

    def __init__(
        self,
        job: JobFolder,
        *,
        token: str = "",
        listen: str = "",
        env: Mapping[str, str] | None = None,
        follows: bool = True,
        continues: bool = False,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.pid = 0
        """Pid of the newest master; 0 before the first start."""
        self.exit: ProcessExit | None = None
        """How the master ended; None while it runs."""
        self._job = job
        self._listen = listen
        self._env = env or {}
        self._follows = follows
        self._continues = continues
        self._launcher = LocalLauncher(job.logs)
        self._hold = job.hold()
        self._starts_in_a_row = 0
        self._stopping = False

    def start(self) -> None:
        """Start the master and return at once.

        Raises:
            OSError: the process cannot be started.
        """
        self._starts_in_a_row += 1
        self.exit = None
        args = ["--job", self._job.name]
        if self._listen:
            args += ["--listen", self._listen]
        args += ["--continue"] * self._continues
        self.pid = self._launcher.start(
            ProcessSpec(
                role="master",
                id=0,
                module="master",
                args=args,
                env={**self._env, ENV_TOKEN: self.token},
                end_with_parent=signal.SIGTERM if self._follows else 0,
            )
        )

    def start_and_listen(self) -> str:
        """Start the master, wait until it listens, and return its address.

        Raises:
            UsageError: the master rejected its configuration, with the master's message.
            JobFailedError: the master ended, or did not listen in time.
        """
        self.start()
        deadline = time.monotonic() + _LISTEN_TIMEOUT_S
        while time.monotonic() < deadline:
            master = self._job.master()
            if master is not None and master.pid == self.pid:
                self._listen = master.listen  # now with the port
                return master.address
            ended = self.poll()
            if ended is not None:
                raise self._cannot_begin(ended)
            time.sleep(_POLL_S)
        raise JobFailedError(
            f"the master of {self._job.name} does not listen after {_LISTEN_TIMEOUT_S:.0f} s; "
            f"see {self._log_path()}"
        )

    def poll(self) -> ProcessExit | None:
        """Return how the master ended, if it has ended since the last call; else None."""
        for ended in self._launcher.poll():
            self.exit = ended
            return ended
        return None

    def answered(self) -> None:
        """Record that the master answered a call, which resets the count of failed starts."""
        self._starts_in_a_row = 0

    def revive(self) -> ProcessExit | None:
        """Restart the master if a signal ended it. Call this whenever the master may have ended.

        Returns:
            How the master ended if it is not restarted; else None.
        """
        ended = self.poll()
        if ended is None or self._stopping or ended.signal is None:
            return ended
        if self._starts_in_a_row >= _MAX_STARTS_IN_A_ROW:
            log.error("the master ended %d times in a row (%s)", self._starts_in_a_row, ended)
            return ended
        log.info("the master ended (%s); starting it again", ended)
        self.start()
        return None

    def stop(self, *, grace_s: float) -> None:
        """Send SIGTERM; :meth:`poll` sends SIGKILL ``grace_s`` seconds later.

        A grace of 0 sends SIGKILL at once. The master is not restarted.
        """
        self._stopping = True
        self._launcher.stop("master", 0, grace_s=grace_s)

    def wait(self, timeout_s: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait for the master to leave after the end of its job, and call ``meanwhile``
        repeatedly.

        After this call, the master is not restarted, and the job is no longer watched.
        """
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        while self.exit is None and time.monotonic() < deadline:
            self.poll()
            meanwhile()
            time.sleep(_POLL_S)
        self._hold.close()

    def close(self, *, grace_s: float = 0) -> None:
        """End the master and wait for its end: SIGTERM, then SIGKILL ``grace_s`` seconds later.

        Afterwards, kill the workers and servers that a killed master has left behind.
        """
        self._stopping = True
        self._launcher.stop_all(grace_s=grace_s)
        if self.exit is None or self.exit.code != SUPERSEDED:
            self._job.end_node()
        self._hold.close()

    def cause(self) -> str:
        """Return the last error in the master's log, or why there is none; empty if unknown."""
        return last_error(self._log_path()) or self._job.no_room()

    def last_words(self) -> str:
        """Return the last lines of the master's log."""
        return last_lines(self._log_path(), _TAIL_LINES)

    def _cannot_begin(self, ended: ProcessExit) -> EdlError:
        cause = self.cause()
        if ended.code == USAGE_CODE and cause:
            return UsageError(cause)
        text = cause or self.last_words()
        return JobFailedError(f"the master of {self._job.name} ended ({ended}): {text}")

    def _log_path(self) -> str:
        return self._launcher.log_path("master", 0)
