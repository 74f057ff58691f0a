"""Starts a job on this machine and follows it: its folder, its master, Ctrl-C and its outcome."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from dataclasses import dataclass, field, replace

from torch_edl.checkpoint.durable import write_text
from torch_edl.cli.follow import MasterStatus, as_reported
from torch_edl.cli.progress import Display
from torch_edl.config import JobConfig
from torch_edl.config.environment import hash_environment
from torch_edl.errors import UsageError
from torch_edl.events import JobFailed
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs import folder, master_host
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.launch.jobs.local_job import stub_of
from torch_edl.launch.jobs.logs import WholeLines, shown_lines
from torch_edl.launch.jobs.master_process import USAGE_CODE, MasterProcess
from torch_edl.processes.signals import StopSignals
from torch_edl.wire.channel import REFUSED, unanswered

_POLL_S = 0.2
_STARTING_POLL_S = 0.02
_CALL_TIMEOUT_S = 2.0
# Seconds after the first Ctrl-C until SIGTERM, and then until SIGKILL, if the master does not
# confirm that it stops.
_TERM_AFTER_S = 4.0
_KILL_AFTER_S = 8.0
# Seconds that the master may take to stop; the last checkpoint may take most of them.
_STOP_WITHIN_S = 100.0
# Seconds after the second Ctrl-C until the master is killed.
_AT_ONCE_S = 2.0
_LEAVE_GRACE_S = 10.0
# Seconds after which a master that runs but has never answered is considered unreachable.
_UNREACHABLE_S = 60.0
# Exit codes of a master that was stopped.
_STOPPED_CODES = (130, 143)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_job(config: JobConfig, display: Display) -> JobOutcome:
    """Start a job and follow it to its end; no process of the job is left afterwards.

    Must be called from the main thread: it handles signals, and children follow their thread.

    Raises:
        UsageError: a job of that name is running.
        OSError: the job's folder cannot be written, or the master cannot be started.
    """
    token = ""
    if config.cluster.endpoint:
        token = master_host.environment_token(config.cluster.endpoint)
    return _stay_with(folder.create(config), config, display, token=token)


def continue_job(job: JobFolder, display: Display) -> JobOutcome:
    """Continue a job whose master and client are gone, or that failed and left journals.

    A new master restores the state of the job; the rest is as in :func:`run_job`.

    Raises:
        UsageError: there is nothing to continue, or the job is running.
        OSError: the job's folder cannot be written, or the master cannot be started.
    """
    config, left = job.config(), job.master()
    if config.kind != "train":
        raise UsageError(f"{job.name}: only the training of a model file continues; start it again")
    if job.is_running():
        raise UsageError(f"{job.name}: it runs; see torch-edl status {job.name}")
    last = job.last_status()
    failed = last.get("state") == "failed" and config.durability.mode == "journal"
    if last.get("state") in ENDED and not failed:
        kept = last.get("checkpoint")
        fix = f"continue from {kept} with --resume" if kept else "it kept no checkpoint; start anew"
        raise UsageError(f"{job.name}: it has {last['state']}; {fix}")
    if left is None:
        raise UsageError(f"{job.name}: it had not begun; start it again with torch-edl run")
    return _stay_with(job, config, display, token=left.token, continues=failed)


def _stay_with(
    job: JobFolder, config: JobConfig, display: Display, *, token: str = "", continues: bool = False
) -> JobOutcome:
    environment = hash_environment(config.train.seed)
    with (
        StopSignals(_SIGNALS) as signals,
        contextlib.closing(
            MasterProcess(
                job,
                token=token,
                listen=config.cluster.endpoint,
                env=environment,
                continues=continues,
            )
        ) as master,
    ):
        client = _Client(job=job, master=master, display=display, signals=signals)
        try:
            master.start()
            return client.until_over()
        finally:
            client.close()


@dataclass(kw_only=True)
class _Client:
    """Follows the job through its master, and stops it when a signal arrives."""

    job: JobFolder
    master: MasterProcess
    display: Display
    signals: StopSignals
    _status: MasterStatus = field(init=False)
    _tails: dict[str, WholeLines] = field(default_factory=dict)
    _unreachable: str = ""
    _stopping_since: float | None = None
    _hurried_at: float | None = None

    def __post_init__(self) -> None:
        self._status = MasterStatus(self.display, self.signals, _CALL_TIMEOUT_S)

    def until_over(self) -> JobOutcome:
        while not self._status.is_over:
            ended = self.master.revive()
            self._poll_status()
            self._show_output()
            if self._unreachable:
                self.master.stop(grace_s=_KILL_AFTER_S)
            if ended is not None or self._unreachable:
                break
            self._heed_signals()
            time.sleep(_STARTING_POLL_S if self._status.newest is None else _POLL_S)
        self._let_leave()
        self._show_output(final=True)
        outcome = self._outcome()
        self._keep(outcome)
        for event in self.display.held:
            if event.kind != JobFailed.kind:
                self.display.event(event)
        return outcome

    def close(self) -> None:
        self.display.close()
        if self._status.stub is not None:
            self._status.stub.close()

    def _poll_status(self) -> None:
        master = self.job.master()
        if master is None:
            return
        status = self._status
        if status.stub is None or status.stub.address != master.address:
            if status.stub is not None:
                status.stub.close()
            status.connect(stub_of(master))
        error = status.ask()
        if error is None:
            self.master.answered()
        elif status.newest is None and (
            error.code() in REFUSED or status.silent_s > _UNREACHABLE_S
        ):
            self._unreachable = (
                f"the master at {master.address} runs and has never answered this command: "
                f"{unanswered(error)}"
            )
        else:
            status.note_silence(error.code().name.lower())

    def _show_output(self, *, final: bool = False) -> None:
        if self._status.newest is None:
            return
        for process in self._status.newest.processes:
            # The master reports through events. Processes of other machines have no file here.
            if process.role == "master" or not process.log.startswith("/"):
                continue
            name = f"{process.role}-{process.id}"
            tail = self._tails.setdefault(name, WholeLines(process.log))
            for line in shown_lines(tail, final=final, own=not self.display.is_stopped):
                self.display.line(name, line)

    def _heed_signals(self) -> None:
        if not self.signals.count:
            return
        now = time.monotonic()
        if self._stopping_since is None:
            self._stopping_since = now
            name = self.signals.name
            again = "; Ctrl-C again ends it at once" if name == "SIGINT" else ""
            self.display.note(f"{name}: stopping the job{again}")
        if self._hurried_at is None and self.signals.count > 1:
            self._hurried_at = now
        if self._status.stub is None:  # the master does not listen yet
            self.master.stop(grace_s=_KILL_AFTER_S)
        else:
            self._status.stop(at_once=self._hurried_at is not None)
        if self._stopping_since == now or self._hurried_at == now:
            return
        if self._hurried_at is not None:
            if self.signals.count > 2 or now - self._hurried_at > _AT_ONCE_S:
                self.master.stop(grace_s=0)
        else:
            newest = self._status.newest
            stops = newest is not None and newest.state == "stopping"
            if now - self._stopping_since > (_STOP_WITHIN_S if stops else _TERM_AFTER_S):
                self.master.stop(grace_s=_KILL_AFTER_S)

    def _keep(self, outcome: JobOutcome) -> None:
        """Write the outcome to the folder of the job if the master did not."""
        seen = self.job.last_status()
        if seen.get("state") in ENDED:
            return
        seen |= {"state": outcome.state, "error": outcome.error, "traceback": outcome.traceback}
        try:
            write_text(self.job.status_file, json.dumps(seen, indent=1))
        except OSError as error:  # only `torch-edl status` of the ended job reads the file
            self.display.note(f"{self.job.dir}: {error.strerror}: the end is not noted there")

    def _let_leave(self) -> None:
        """Wait until the master exits after the job is over, for at most 10 seconds."""
        deadline = time.monotonic() + _LEAVE_GRACE_S
        signals_before = self.signals.count
        while self.master.exit is None and time.monotonic() < deadline:
            if self.signals.count > max(1, signals_before):
                return
            self.master.poll()
            self._show_output()
            time.sleep(_STARTING_POLL_S)

    def _outcome(self) -> JobOutcome:
        status, ended = self._status.newest, self.master.exit
        seen = JobOutcome(
            state="failed",
            status=status,
            signal=self.signals.first,
            master_pid=self.master.pid,
            master_exit="" if ended is None else str(ended),
            logs=str(self.job.logs),
        )
        if status is not None and self._status.is_over:
            return as_reported(seen, status)
        if self._unreachable:
            return replace(seen, error=self._unreachable, usage_error=True)
        # The master ended before this client saw the final state; another client may have seen it.
        code = None if ended is None else ended.code
        if code == 0:
            return replace(seen, state="finished")
        if self.signals.count or code in _STOPPED_CODES:
            return replace(seen, state="stopped")
        cause = self.display.held[-1].text if self.display.held else ""
        if code == USAGE_CODE and not cause:  # the master failed before its first event
            cause = self.master.cause()
        if cause:
            return replace(seen, error=cause, usage_error=code == USAGE_CODE)
        error = f"the master of the job ended unexpectedly ({seen.master_exit})"
        return replace(seen, error=error, traceback=self.master.last_words())
