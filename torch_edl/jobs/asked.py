"""A job that can be asked, wherever its master runs: on this machine, or on a cluster."""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.jobs import calls, status
from torch_edl.jobs.folder import ENDED, JobFolder
from torch_edl.wire import master_pb2 as pb


class AskedJob(Protocol):
    """What the commands need of a job that runs, or has run."""

    @property
    def name(self) -> str:
        """As the user gave it."""
        ...

    @property
    def logs(self) -> str:
        """Where its logs are: a folder, or the command that shows them."""
        ...

    def config(self) -> JobConfig:
        """The configuration of the job.

        Raises:
            UsageError: it is not one of this version.
            EdlError: the cluster of the job does not answer, or refuses.
        """
        ...

    def ask(self, request: Message) -> Any:
        """Makes one call to the master.

        Raises:
            UsageError: the job is over, or the master rejected the call.
            EdlError: the cluster of the job does not answer, or refuses.
        """
        ...

    def stop(self, request: pb.StopRequest) -> None:
        """Asks the master to stop the job; a job that has no master yet is removed.

        Raises:
            UsageError: the job is over.
            EdlError: the cluster of the job does not answer, or refuses.
        """
        ...

    def report(self) -> dict[str, Any]:
        """The status of the job as plain data, from its master or from what is left of it.

        Raises:
            EdlError: the cluster of the job does not answer, or refuses.
        """
        ...

    def started(self) -> float:
        """When the job was made, in Unix seconds."""
        ...

    def is_gone(self) -> bool:
        """Whether no process of the job is left.

        Raises:
            EdlError: the cluster of the job does not answer, or refuses.
        """
        ...


class LocalJob:
    """A job of this machine."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return self._folder.name

    @property
    def logs(self) -> str:
        return str(self._folder.logs)

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
