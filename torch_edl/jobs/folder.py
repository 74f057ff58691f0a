"""The folder of a job: what lies in it, and which processes of the job live."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch_edl.config import JobConfig
from torch_edl.environment import edl_home
from torch_edl.errors import UsageError
from torch_edl.files import write_text

ENDED = ("finished", "failed", "stopped")
"""States of a job that is over."""

CONFIG = "job.json"
"""A folder without this file is no job's."""
_CLIENT_LOCK = "client.lock"
_AGENT_LOCKS = "agent-*.lock"
# For the state and the first lines of the logs.
_ROOM_BYTES = 256 << 10
# A job that has just got its folder has no process to be seen yet.
_STARTING_S = 60.0


def jobs_home() -> Path:
    """The parent of all folders of jobs."""
    return edl_home() / "jobs"


@dataclass(frozen=True, kw_only=True)
class MasterAddress:
    """What the master wrote when it began to listen."""

    address: str
    pid: int
    token: str
    listen: str = ""
    """The interface and port that it listens on, for a master that takes its place."""


class JobFolder:
    """The folder of a job by the job's name; nothing is read before it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dir = jobs_home() / name
        self.config_file = self.dir / CONFIG
        self.master_file = self.dir / "master.json"
        """The address, pid and token of the newest master."""
        self.status_file = self.dir / "status.json"
        """The last status of the job."""
        self.events_file = self.dir / "events.jsonl"
        """The events of the job, one JSON object a line."""
        self.logs = self.dir / "logs"
        """The folder of the processes' outputs."""
        self.predictions = self.dir / "predictions"
        """The folder of predictions, a file for each task."""

    def config(self) -> JobConfig:
        """The configuration of the job.

        Raises:
            UsageError: there is no such job, or its configuration is not one of this version.
        """
        try:
            return JobConfig.from_json(self.config_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            problem = "no such job; start one with torch-edl run"
            raise UsageError(f"{self.config_file}: {problem}") from None
        except ValueError as error:
            raise UsageError(f"{self.config_file}: {error}") from error

    def master(self) -> MasterAddress | None:
        """Where the newest master listens or listened; None before it did."""
        try:
            return MasterAddress(**json.loads(self.master_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def note_master(self, master: MasterAddress) -> None:
        """Writes where the master listens, for this user alone.

        Raises:
            OSError: the disk refused.
        """
        write_text(self.master_file, json.dumps(dataclasses.asdict(master)), 0o600)

    def last_status(self) -> dict[str, Any]:
        """The status that the master wrote last, or the client at the end; empty without one."""
        try:
            raw = json.loads(self.status_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return raw if isinstance(raw, dict) else {}

    def started(self) -> float:
        """When the job was started, in Unix seconds; 0 if its folder is gone."""
        return _modified(self.config_file)

    def touched(self) -> float:
        """When the job last wrote something, in Unix seconds."""
        return max(map(_modified, (self.config_file, self.status_file, self.events_file)))

    def is_alive(self) -> bool:
        """Whether the job's master runs: the process exists and is a master of this job."""
        master = self.master()
        return master is not None and _runs_master(master.pid, self.name)

    def is_watched(self) -> bool:
        """Whether the process that started the master lives."""
        return _is_locked(self.dir / _CLIENT_LOCK)

    def has_master(self) -> bool:
        """Whether the master runs, or the process that may start it again."""
        return self.is_watched() or self.is_alive()

    def is_running(self) -> bool:
        """Whether the job's name is taken: it has a master, or agents that wait for one."""
        return self.has_master() or any(map(_is_locked, self.dir.glob(_AGENT_LOCKS)))

    def is_over(self) -> bool:
        """Whether the folder may go: no process of the job lives, and none is about to start."""
        if self.is_running():
            return False
        ended = self.last_status().get("state") in ENDED
        return ended or time.time() - self.touched() >= _STARTING_S

    def hold(self) -> BinaryIO:
        """Marks the job as watched until the file is closed, or this process is gone."""
        return _lock(self.dir / _CLIENT_LOCK)

    def take_part(self) -> BinaryIO:
        """Marks an agent as alive until the file is closed, or this process is gone.

        Raises:
            OSError: the folder is gone or cannot be written.
        """
        return _lock(self.dir / _AGENT_LOCKS.replace("*", secrets.token_hex(4)))

    def no_room(self) -> str:
        """Why the job cannot write to its folder, and what to do; empty if it can."""
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
        return False
    return name.encode() in command.split(b"\0")
