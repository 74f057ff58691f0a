"""The jobs of this machine: their folders, and how to reach their masters."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torch_edl.config import JobConfig
from torch_edl.environment import edl_home, job_dir
from torch_edl.errors import UsageError

if TYPE_CHECKING:
    from torch_edl.wire import master_pb2 as pb
    from torch_edl.wire.channel import Stub

CONFIG = "job.json"
MASTER = "master.json"
LAST_STATUS = "status.json"
EVENTS = "events.jsonl"
PREDICTIONS = "predictions"
LOGS = "logs"
LOCK = "client.lock"
AGENT_LOCKS = "agent-*.lock"

ENDED = ("finished", "failed", "stopped")
# What stays when a new job starts: folders of so many jobs, for so long after their end.
KEEP_JOBS = 100
KEEP_DAYS = 30.0
_CALL_TIMEOUT_S = 3.0
# For the state and the first lines of the logs.
_ROOM_BYTES = 256 << 10
# A job that has just got its folder has no process to be seen yet.
_STARTING_S = 60.0


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """What the master wrote when it began to listen."""

    address: str
    pid: int
    token: str


@dataclass(frozen=True)
class Job:
    """A job by its name; nothing is read before it is asked for."""

    name: str

    @property
    def dir(self) -> Path:
        """Its folder."""
        return job_dir(self.name)

    def master(self) -> MasterAddress | None:
        """Where its master listens or listened; None before it did."""
        try:
            raw = json.loads((self.dir / MASTER).read_text(encoding="utf-8"))
            return MasterAddress(
                address=str(raw["address"]), pid=int(raw["pid"]), token=str(raw["token"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def last_status(self) -> dict[str, Any]:
        """What its master told last, or its client of the end; empty if there is nothing."""
        try:
            raw = json.loads((self.dir / LAST_STATUS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return raw if isinstance(raw, dict) else {}

    def is_alive(self) -> bool:
        """Whether its master runs: the process exists and is a master of this job."""
        master = self.master()
        return master is not None and _runs_master(master.pid, self.name)

    def is_over(self) -> bool:
        """Whether nobody needs its folder any more: no process of it lives, and none is about to
        start."""
        if self.is_running():
            return False
        ended = self.last_status().get("state") in ENDED
        return ended or time.time() - self.touched() >= _STARTING_S

    def started(self) -> float:
        """When it was started, in Unix seconds; 0 if its folder is gone."""
        return _modified(self.dir / CONFIG)

    def touched(self) -> float:
        """When something of it was last written, in Unix seconds."""
        return max(_modified(self.dir / name) for name in (CONFIG, LAST_STATUS, EVENTS))

    def is_watched(self) -> bool:
        """Whether the client that started it lives."""
        return _is_locked(self.dir / LOCK)

    def has_agents(self) -> bool:
        """Whether an agent of this machine takes part in it."""
        return any(map(_is_locked, self.dir.glob(AGENT_LOCKS)))

    def has_master(self) -> bool:
        """Whether its master runs, or who started that may start it again."""
        return self.is_watched() or self.is_alive()

    def is_running(self) -> bool:
        """Whether its name is taken: it has a master, or agents that wait for one."""
        return self.has_master() or self.has_agents()

    def hold(self) -> BinaryIO:
        """Notes the job as watched until the file is closed, or this process is gone."""
        return _lock(self.dir / LOCK)

    def take_part(self) -> BinaryIO:
        """Says that an agent lives, until the file is closed, or this process is gone.

        Raises:
            OSError: the folder is gone or cannot be written.
        """
        return _lock(self.dir / AGENT_LOCKS.replace("*", secrets.token_hex(4)))


def claim(job: Job, config: JobConfig) -> None:
    """Makes the folder of a new job, in the place of an older one's of that name.

    Raises:
        UsageError: a job of that name runs, or there is no room for its folder.
        OSError: the folder cannot be written.
    """
    if job.dir.exists():
        if job.is_running():
            raise UsageError(
                f"--job-name {job.name}: a job of that name is running; choose another, "
                f"or end it with torch-edl stop {job.name}"
            )
        if not (job.dir / CONFIG).exists() and any(job.dir.iterdir()):
            raise UsageError(f"{job.dir}: not the folder of a job; choose another --job-name")
        remove(job)
    for old in outdated(days=KEEP_DAYS, keep=KEEP_JOBS):
        with contextlib.suppress(OSError):  # another one removes it too, or it is not ours
            remove(old)
    job.dir.parent.mkdir(parents=True, exist_ok=True)
    job.dir.mkdir(mode=0o700)
    try:
        if config.kind == "predict":
            (job.dir / PREDICTIONS).mkdir()
        if problem := no_room(job):
            raise UsageError(problem)
        write_text(job.dir / CONFIG, config.to_json())
    except (OSError, UsageError):
        shutil.rmtree(job.dir, ignore_errors=True)
        raise


def no_room(job: Job) -> str:
    """Why a job cannot write to its folder, and what to do; empty if it can."""
    probe = job.dir / ".room"
    try:
        probe.write_bytes(bytes(_ROOM_BYTES))
    except OSError as error:
        return (
            f"{job.dir}: {error.strerror}: a job keeps its state and its logs there; make room, "
            "or set TORCH_EDL_HOME to a folder on another disk"
        )
    finally:
        probe.unlink(missing_ok=True)
    return ""


def outdated(*, days: float | None, keep: int | None) -> list[Job]:
    """Jobs that are over and need not be kept, newest first.

    Args:
        days: those that nothing was written of for so long; None: age does not count.
        keep: those that came before the newest ``keep``; None: the number does not count.
    """
    since = math.inf if days is None else days * 86400
    now = time.time()
    return [
        job
        for place, job in enumerate(all_jobs())
        if ((keep is not None and place >= keep) or now - job.touched() >= since) and job.is_over()
    ]


def remove(job: Job) -> None:
    """Removes the folder of a job.

    Raises:
        OSError: it cannot be removed.
    """
    shutil.rmtree(job.dir)


def write_text(path: Path, text: str) -> None:
    """Replaces a file by one of that text, whole or not at all.

    Raises:
        OSError: the disk refused; what was there stays.
    """
    from torch_edl.data.sources.files import replacing

    with replacing(path) as file:
        file.write(text.encode())


def all_jobs() -> list[Job]:
    """Every job of this machine, newest first."""
    found = []
    for config in (edl_home() / "jobs").glob(f"*/{CONFIG}"):
        try:
            found.append((config.stat().st_mtime_ns, config.parent.name))
        except FileNotFoundError:  # removed meanwhile
            continue
    return [Job(name) for _, name in sorted(found, reverse=True)]


def find(name: str | None) -> Job:
    """The job of that name; the newest for None.

    Raises:
        UsageError: there is none.
    """
    jobs = all_jobs()
    if not jobs:
        raise UsageError(f"no job on this machine ({edl_home()}); start one with torch-edl run")
    if name is None:
        return jobs[0]
    for job in jobs:
        if job.name == name:
            return job
    raise UsageError(f"{name}: no such job; the newest is {jobs[0].name}, see torch-edl list")


def connect(job: Job) -> Stub:
    """A stub of the job's master.

    Raises:
        UsageError: the job is over.
    """
    master = job.master()
    if master is None or not job.is_alive():
        state = job.last_status().get("state", "dead")
        raise UsageError(f"{job.name}: not running any more, it is {state}")
    return stub_of(master)


def stub_of(master: MasterAddress) -> Stub:
    """A stub of a master, connected when first used."""
    from torch_edl.wire import master_pb2
    from torch_edl.wire.channel import Stub

    service = master_pb2.DESCRIPTOR.services_by_name["Master"]
    return Stub(service, master.address, master.token)


def ask(job: Job, method: str, request: Any) -> Any:
    """One call to the job's master.

    Raises:
        UsageError: the job is over, or the master refused.
    """
    import grpc

    stub = connect(job)
    try:
        return stub.call(method, request, timeout_s=_CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        code = error.code()
        if code == grpc.StatusCode.INVALID_ARGUMENT:
            raise UsageError(f"{job.name}: {error.details()}") from error
        if not job.is_alive():
            raise UsageError(f"{job.name}: it ended just now; see torch-edl status") from error
        raise UsageError(
            f"{job.name}: its master does not answer ({code.name.lower()}); try again"
        ) from error
    finally:
        stub.close()


def get_status(job: Job) -> pb.GetStatusResponse | None:
    """The status as the master tells it; None if there is no master to ask."""
    from torch_edl.wire import master_pb2

    try:
        status: pb.GetStatusResponse = ask(job, "GetStatus", master_pb2.GetStatusRequest())
    except UsageError:
        return None
    return status


def _lock(path: Path) -> BinaryIO:
    file = open(path, "wb")  # noqa: SIM115 - the caller closes it
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _is_locked(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _runs_master(pid: int, name: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
        try:  # no /proc: the number may have gone to another process, the call will tell
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True
    return name.encode() in command.split(b"\0")
