"""Common interface to a running or ended job, on this machine or on a cluster."""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.launch.jobs import calls, status
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.wire import master_pb2 as pb


class JobHandle(Protocol):
    """Interface of a running or ended job, as used by the commands."""

    @property
    def name(self) -> str:
        """Name of the job, as given by the user."""
        ...

    @property
    def logs(self) -> str:
        """Location of the logs: a folder, or the command that shows the logs."""
        ...

    def config(self) -> JobConfig:
        """Return the configuration of the job.

        Raises:
            UsageError: the configuration was written by another version.
            EdlError: the cluster of the job does not answer, or rejects the request.
        """
        ...

    def ask(self, request: Message) -> Any:
        """Make one call to the master and return the answer.

        Raises:
            UsageError: the job is over, or the master rejected the call.
            EdlError: the cluster of the job does not answer, or rejects the request.
        """
        ...

    def stop(self, request: pb.StopRequest) -> None:
        """Ask the master to stop the job; a job without a master is deleted.

        Raises:
            UsageError: the job is over.
            EdlError: the cluster of the job does not answer, or rejects the request.
        """
        ...

    def report(self) -> dict[str, Any]:
        """Return the status as plain data, from the master or from what the ended job has left.

        Raises:
            EdlError: the cluster of the job does not answer, or rejects the request.
        """
        ...

    def started(self) -> float:
        """Return the Unix time at which the job was created, in seconds."""
        ...

    def is_gone(self) -> bool:
        """Return True if no process of the job is left.

        Raises:
            EdlError: the cluster of the job does not answer, or rejects the request.
        """
        ...


class LocalJob:
    """A job of this machine; see :class:`JobHandle`."""

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
