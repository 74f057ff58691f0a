"""What trackers receive: the configuration, versions, numbers by step, and the exported model."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from torch_edl.checkpoint.durable import write_text
from torch_edl.config import JobConfig
from torch_edl.events import Event
from torch_edl.interfaces import Observer
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.plugins.trackers.process import RunProcess, TrackerError
from torch_edl.plugins.trackers.run import Run

_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")
# Seconds until the next attempt to open a run, for example after a missing login.
_PAUSE_S = 30.0


class Tracker(Observer):
    """An observer with one run per job. The id of the run is stored in two places: in the job's
    folder, where a continued job finds it, and in the checkpoint folder, where a job that resumes
    from its checkpoints finds it.

    If neither folder is on this machine, as for a job on a cluster, each command that follows the
    job starts a new run.
    """

    END_S = 60.0  # a model is uploaded
    NAME: ClassVar[str]
    """Name of the entry point."""
    RUN: ClassVar[type[Run]]
    """Class of the runs."""

    def __init__(self, value: str) -> None:
        self._value = value
        self._is_open = False
        self._retry_at = 0.0

    def begin(self, job: JobConfig) -> None:
        """Start the process. The folder of a new job may not exist before its first event."""
        self._job = job
        self._run = RunProcess(self.RUN)

    def event(self, time: float, event: Event) -> None:
        """Open the run at the first event of the job."""
        self._opened()

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        """Send the scalars of a step."""
        if self._opened():
            self._run.call("log", step, time, dict(values))

    def end(self, state: str, error: str) -> None:
        """Send the exported model of a finished job, and close the run."""
        try:
            output = self._job.checkpoint.output
            if self._is_open and state == "finished" and output and Path(output).exists():
                self._run.call("log_model", output)
        finally:
            try:
                if self._is_open:
                    self._run.call("close", state)
            finally:
                self._run.end()

    def _opened(self) -> bool:
        if self._is_open or time.monotonic() < self._retry_at:
            return self._is_open
        before = self._run_before()
        try:
            run = self._run.call("open", self._value, self._job.name, before, settings(self._job))
        except TrackerError:
            self._retry_at = time.monotonic() + _PAUSE_S
            raise
        self._is_open = True
        for file in self._files():
            if file.parent.is_dir():
                write_text(file, run)
        return True

    def _files(self) -> list[Path]:
        """Return the files of the run's id: in the job's folder, and beside the checkpoints."""
        files = [JobFolder(self._job.name).dir / f"{self.NAME}-run"]
        if self._job.checkpoint.dir:
            files.append(Path(self._job.checkpoint.dir) / f".{self.NAME}-run")
        return files

    def _run_before(self) -> str:
        """Return the id of the run of a job that is continued or resumed; empty for a new run."""
        files = self._files()
        for file in files if self._job.checkpoint.resume else files[:1]:
            if file.exists():
                return file.read_text(encoding="utf-8")
        return ""


def require(library: str) -> None:
    """Raise ImportError unless a library is installed; its import would take seconds."""
    if find_spec(library) is None:
        raise ImportError(f"No module named {library!r}")


def settings(job: JobConfig) -> dict[str, str | int | float]:
    """Return the configuration as flat values by dotted name, without passwords in URLs, and the
    versions of Python, torch and torch-edl."""
    found = dict(_flat("", json.loads(job.to_json())))
    found["versions.python"] = platform.python_version()
    for package in ("torch", "torch-edl"):
        try:
            found[f"versions.{package}"] = version(package)
        except PackageNotFoundError:  # run from a source tree
            continue
    return found


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str | int | float]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, each)
    elif isinstance(value, bool | int | float):
        yield prefix, value
    elif value:
        text = value if isinstance(value, str) else json.dumps(value)
        yield prefix, _PASSWORD.sub("***", text)
