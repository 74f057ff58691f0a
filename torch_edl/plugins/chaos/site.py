"""Where the processes of a job run: on this machine, or in the pods of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.plugins.chaos.storm import Blow, Target
from torch_edl.wire import master_pb2 as pb

EXITED = "exited"


class Site(Protocol):
    """A running job and its processes."""

    where: str
    """Place of the job for messages: ``on this machine``, ``in namespace team``."""

    def config(self) -> JobConfig:
        """Return the configuration of the job."""
        ...

    def ask(self, request: Message) -> Any:
        """Call the master once.

        Raises:
            EdlError: no master answers, or the master rejects the call.
        """
        ...

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        """Return the processes of a status that run and that a signal can reach."""
        ...

    def out_of_reach(self, listed: Iterable[pb.ProcessStatus]) -> int:
        """Return the number of running processes that are out of reach, on other machines."""
        ...

    def strike(self, blow: Blow) -> bool:
        """Send a signal, or request it; return False if the process is gone."""
        ...

    def has_master(self) -> bool:
        """Return True if a master runs, or may be started again."""
        ...

    def end(self) -> tuple[str, str]:
        """Return the state of the job after its master has ended, and the reason of a failure."""
        ...

    def close(self) -> None:
        """Release all resources after the storm."""
        ...
