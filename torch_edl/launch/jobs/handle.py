"""A running or ended job of this machine, as commands see it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import JobHandle, LogQuery
from torch_edl.launch.jobs import calls, local_logs, status
from torch_edl.launch.jobs.folder import ENDED, JobFolder

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import Console

    from torch_edl.config import JobConfig
    from torch_edl.wire import master_pb2 as pb


class LocalJob(JobHandle):
    """Implements :class:`~torch_edl.interfaces.JobHandle` with the folder of a job."""

    where = ""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self.name = folder.name

    @property
    def logs(self) -> str:
        return str(self._folder.logs)

    @property
    def place(self) -> str:
        return str(self._folder.dir)

    def config(self) -> JobConfig:
        return self._folder.config()

    def ask(self, request: Message) -> Any:
        return calls.ask(self._folder, request)

    def stop(self, request: pb.StopRequest) -> None:
        self.ask(request)

    def report(self) -> dict[str, Any]:
        return status.report(self._folder)

    def started(self) -> float:
        return self._folder.started()

    def is_gone(self) -> bool:
        folder = self._folder
        watched = folder.is_watched() and folder.last_status().get("state") not in ENDED
        return not folder.is_alive() and not watched

    def is_over(self) -> bool:
        return self._folder.is_over()

    def touched(self) -> float:
        return self._folder.touched()

    def remove(self) -> None:
        shutil.rmtree(self._folder.dir)

    def attach(self, console: Console) -> None:
        raise UsageError(
            f"{self.name}: the command that started it shows its progress; torch-edl logs "
            f"{self.name} --follow shows its events and output"
        )

    def read_logs(self, query: LogQuery, write: Callable[[str, str], None]) -> None:
        local_logs.read(self._folder, query, write)
