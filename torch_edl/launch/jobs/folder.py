"""The folders of the jobs of this machine: create, find and remove them, their files, and which
processes of a job are alive."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict, TypeVar

from torch_edl import typed_json
from torch_edl.checkpoint.durable import write_text
from torch_edl.config import JobConfig
from torch_edl.config.environment import edl_home
from torch_edl.errors import UsageError
from torch_edl.processes.process_group import start_time
from torch_edl.typed_json import Count

ENDED = ("finished", "failed", "stopped")
"""States of an ended job."""

KEEP_JOBS = 100
"""Number of folders of older jobs that are kept when a new job starts."""
KEEP_DAYS = 30.0
"""Days for which such a folder is kept after the last write of its job."""
# No characters that look alike.
_SUFFIX_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
_Job = TypeVar("_Job", bound=Any)

_CONFIG = "job.json"
"""Configuration file; a folder without this file does not belong to a job."""
_CLIENT_LOCK = "client.lock"
_NODE_LOCKS = "node-*.lock"
# Space for the state and the first lines of the logs.
_ROOM_BYTES = 256 << 10
# Time after the creation of the folder within which a job may have no process yet.
_STARTING_S = 60.0
# Others look at a lock by taking it for a moment.
_LOOK_S = 1.0
_POLL_S = 0.01
# The structure flock of fcntl(2): type, whence, start, length, pid.
_FLOCK = "hhqqi4x"


def jobs_home() -> Path:
    """Return the parent of the folders of all jobs."""
    return edl_home() / "jobs"


def make_jobs_home() -> Path:
    """Make the parent of all folders of jobs, and return it.

    Raises:
        UsageError: this user cannot write there.
    """
    home = jobs_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UsageError(
            f"{home}, for the folders of jobs: {error.strerror}; name a folder that you may write "
            "to with TORCH_EDL_HOME"
        ) from error
    return home


def new_name(model_file: str) -> str:
    """Return a name for a job: the stem of the file, or of the folder of ``model.py``, and a random
    suffix."""
    path = Path(model_file).expanduser().absolute()
    stem = path.parent.name if path.stem == "model" else path.stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "job"
    return f"{stem}-" + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(6))


_Numbers = dict[str, float | None]


class _Records(TypedDict):
    done: Count
    total: Count


class _Tasks(TypedDict):
    todo: Count
    doing: Count
    done: Count


class _Process(TypedDict):
    role: str
    id: int
    pid: int
    state: str
    address: str
    exit: str
    log: NotRequired[str]
    node: NotRequired[str]
    phase: NotRequired[str]
    problem: NotRequired[str]
    records: NotRequired[Count]
    updates: NotRequired[Count]
    rows: NotRequired[Count]
    bytes: NotRequired[Count]
    lease_s: NotRequired[float]
    idle_s: NotRequired[float]
    busy_s: NotRequired[float]
    slow: NotRequired[float]
    seconds: NotRequired[_Numbers]
    machine: NotRequired[_Numbers]
    counts: NotRequired[_Counts | None]


class _Histogram(TypedDict):
    bounds: list[float]
    counts: list[Count]
    sum: float


class _Table(TypedDict):
    name: str
    rows: Count
    bytes: Count
    evicted: Count
    frequent_ids: NotRequired[list[int]]
    frequent_updates: NotRequired[list[Count]]
    updates: NotRequired[Count]


class _Counts(TypedDict):
    pull_s: NotRequired[_Histogram | None]
    push_s: NotRequired[_Histogram | None]
    staleness: NotRequired[_Histogram | None]
    journal_lag_s: NotRequired[float]
    journal_bytes: NotRequired[Count]
    tables: NotRequired[list[_Table]]


class _Evaluation(TypedDict):
    steps: Count
    metrics: _Numbers


class _Best(TypedDict):
    metric: str
    value: float
    steps: Count


class _Status(TypedDict):
    """The file of the last status, as far as commands read it; see ``docs/schemas/status.json``."""

    job: NotRequired[str]
    kind: NotRequired[str]
    strategy: NotRequired[str]
    reason: NotRequired[str]
    state: NotRequired[str]
    epoch: NotRequired[Count]
    epochs: NotRequired[Count | None]
    records: NotRequired[_Records]
    tasks: NotRequired[_Tasks]
    processes: NotRequired[list[_Process]]
    rates: NotRequired[_Numbers]
    steps: NotRequired[Count]
    loss: NotRequired[float | None]
    logged: NotRequired[_Numbers]
    evaluations: NotRequired[list[_Evaluation]]
    best: NotRequired[_Best | None]
    workers_wanted: NotRequired[Count]
    servers_wanted: NotRequired[Count]
    checkpoint: NotRequired[str]
    rolled_back: NotRequired[dict[str, Count]]
    updates_lost: NotRequired[Count]
    losses: NotRequired[list[dict[str, Any]]]
    damaged: NotRequired[Count]
    nan_steps: NotRequired[Count]
    wall_s: NotRequired[float]
    error: NotRequired[str]
    traceback: NotRequired[str]


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """Address of a master, written by the master when it started to listen."""

    address: str
    pid: Count
    started: Count
    """Start time of the process in clock ticks since boot; a pid alone may be reused."""
    token: str
    listen: str = ""
    """Interface and port to listen on, for a restarted master; empty if unknown."""


class JobFolder:
    """The folder of a job with a given name. Files are read when a method needs them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dir = jobs_home() / name
        self.config_file = self.dir / _CONFIG
        self.master_file = self.dir / "master.json"
        """File with address, pid and token of the newest master."""
        self.status_file = self.dir / "status.json"
        """File with the last status of the job."""
        self.events_file = self.dir / "events.jsonl"
        """File with the events of the job, one JSON object per line."""
        self.history_file = self.dir / "history.jsonl"
        """File with curves and changes of processes, see the observer ``history``."""
        self.predictions = self.dir / "predictions"
        """Folder with the predictions, one file per task."""
        self.node_lock = self.dir / "node.lock"
        """File that the node of the job locks while it runs."""
        self._held: BinaryIO | None = None

    @property
    def logs(self) -> Path:
        """Folder with the outputs of the processes."""
        return self.dir / "logs"

    def config(self) -> JobConfig:
        """Return the configuration of the job.

        Raises:
            UsageError: there is no such job, or another version wrote its configuration.
        """
        try:
            return JobConfig.from_json(typed_json.read(self.config_file))
        except FileNotFoundError:
            problem = "no such job; start one with torch-edl run"
            raise UsageError(f"{self.config_file}: {problem}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.config_file}: {error}") from error

    def master(self) -> MasterAddress | None:
        """Return the address of the newest master, alive or not; None if there was none."""
        try:
            return typed_json.parse(typed_json.read(self.master_file), MasterAddress)
        except (OSError, ValueError):
            return None

    def note_master(self, master: MasterAddress) -> None:
        """Write the address of the master, readable by this user only.

        Raises:
            OSError: the file cannot be written.
        """
        write_text(self.master_file, json.dumps(dataclasses.asdict(master)), 0o600)

    def last_status(self) -> dict[str, Any]:
        """Return the last status that the master or the client wrote; empty without one, or if the
        file is damaged."""
        try:
            return dict(typed_json.parse(typed_json.read(self.status_file), _Status))
        except (OSError, ValueError):
            return {}

    def started(self) -> float:
        """Return the start time in Unix seconds; 0 if the folder does not exist."""
        return _modified(self.config_file)

    def touched(self) -> float:
        """Return the time of the job's last write in Unix seconds."""
        return max(map(_modified, (self.config_file, self.status_file, self.events_file)))

    def is_alive(self) -> bool:
        """Return True if the master is running."""
        master = self.master()
        return master is not None and 0 < master.started == start_time(master.pid)

    def is_watched(self) -> bool:
        """Return True if the process that started the master is alive."""
        return _is_locked(self.dir / _CLIENT_LOCK)

    def has_master(self) -> bool:
        """Return True if the master is running, or the process that can restart it."""
        return self.is_watched() or self.is_alive()

    def has_node(self) -> bool:
        """Return True if the node that starts the processes of the job is running."""
        return bool(_locked_by(self.node_lock))

    def end_node(self) -> None:
        """Kill the node, and thereby all its processes, and wait until the node has ended."""
        while pid := _locked_by(self.node_lock):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def is_running(self) -> bool:
        """Return True if the name of the job is in use: by a master or by waiting nodes."""
        return self.has_master() or any(map(_is_locked, self.dir.glob(_NODE_LOCKS)))

    def is_over(self) -> bool:
        """Return True if the folder may be removed: no process is alive or about to start."""
        if self.is_running():
            return False
        ended = self.last_status().get("state") in ENDED
        return ended or time.time() - self.touched() >= _STARTING_S

    def hold(self) -> BinaryIO:
        """Mark the job as watched, until the file is closed or this process ends.

        Raises:
            UsageError: another process watches the job.
        """
        if self._held is None or self._held.closed:
            try:
                self._held = _lock(self.dir / _CLIENT_LOCK)
            except BlockingIOError:
                raise UsageError(
                    f"{self.name}: another process runs this job; see torch-edl status {self.name}"
                ) from None
        return self._held

    def take_part(self) -> BinaryIO:
        """Mark a node as alive, until the file is closed or this process ends.

        Raises:
            OSError: the folder does not exist or is not writable.
        """
        return _lock(self.dir / _NODE_LOCKS.replace("*", secrets.token_hex(4)))

    def no_room(self) -> str:
        """Return why the job cannot write to its folder, with advice; empty if it can."""
        probe = self.dir / ".room"
        try:
            probe.write_bytes(bytes(_ROOM_BYTES))
        except OSError as error:
            return (
                f"{self.dir}: {error.strerror}: a job keeps its state and its logs there; make "
                "room, or set TORCH_EDL_HOME to a folder on another disk"
            )
        finally:
            probe.unlink(missing_ok=True)
        return ""


def all_jobs() -> list[JobFolder]:
    """Return every job of this machine, newest first."""
    jobs = [JobFolder(config.parent.name) for config in jobs_home().glob(f"*/{_CONFIG}")]
    found = sorted(((job.started(), job.name) for job in jobs), reverse=True)
    return [JobFolder(name) for started, name in found if started]  # 0: just removed


def find(name: str | None) -> JobFolder:
    """Return the job with that name, or the newest job for None.

    Raises:
        UsageError: there is no such job.
    """
    jobs = all_jobs()
    if not jobs:
        raise UsageError(f"no job on this machine ({edl_home()}); start one with torch-edl run")
    named = [job for job in jobs if name in (None, job.name)]
    if not named:
        raise UsageError(f"{name}: no such job; the newest is {jobs[0].name}, see torch-edl list")
    return named[0]


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Keeps all other processes of this user on this machine out of the blocks of that name."""
    with open(make_jobs_home() / f".{what}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_free(name: str) -> None:
    """Raise UsageError if a job of that name is running."""
    if JobFolder(name).is_running():
        raise UsageError(
            f"--job-name {name}: a job of that name is running; choose another, "
            f"or end it with torch-edl stop {name}"
        )


@one_at_a_time("create")
def create(config: JobConfig) -> JobFolder:
    """Create the folder of a new job, replacing that of an older job with the same name, and mark
    the job as watched by this process. Of several processes that create one job at once, one does.

    Raises:
        UsageError: a job of that name is running, the disk is full, or this user cannot write to
            the parent of the folder.
        OSError: the folder cannot be written.
    """
    require_free(config.name)
    job = JobFolder(config.name)
    if job.dir.exists():
        if not job.config_file.exists() and any(job.dir.iterdir()):
            raise UsageError(f"{job.dir}: not the folder of a job; choose another --job-name")
        shutil.rmtree(job.dir)
    for old in outdated(all_jobs(), days=KEEP_DAYS, keep=KEEP_JOBS):
        with contextlib.suppress(OSError):  # removed by another process, or not our file
            shutil.rmtree(old.dir)
    job.dir.mkdir(mode=0o700)
    try:
        if problem := job.no_room():
            raise UsageError(problem)
        write_text(job.config_file, config.to_json())
        job.hold()
    except (OSError, UsageError):
        shutil.rmtree(job.dir, ignore_errors=True)
        raise
    return job


def outdated(jobs: Sequence[_Job], *, days: float | None, keep: int | None) -> list[_Job]:
    """Return the ended jobs that need not be kept.

    Args:
        jobs: jobs with ``touched`` and ``is_over``, newest first.
        days: days since the last write, from which a job is outdated; None for no limit.
        keep: number of newest jobs that are not outdated; None for no limit.
    """
    since = math.inf if days is None else days * 86400
    now = time.time()
    return [
        job
        for place, job in enumerate(jobs)
        if ((keep is not None and place >= keep) or now - job.touched() >= since) and job.is_over()
    ]


def _lock(path: Path) -> BinaryIO:
    """
    Raises:
        BlockingIOError: another process has the lock, and does not merely look at it.
    """
    file = open(path, "wb")  # noqa: SIM115 - the caller closes it
    until = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= until:
                file.close()
                raise
            time.sleep(_POLL_S)


def _is_locked(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _locked_by(path: Path) -> int:
    """Return the pid of the process of this machine that holds an fcntl(2) lock on a file; 0 if
    none does."""
    try:
        with open(path, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except OSError:
        return 0
    # Negative for a process of another machine that shares the disk.
    return max(0, pid) if kind != fcntl.F_UNLCK else 0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
