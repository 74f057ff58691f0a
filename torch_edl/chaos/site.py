"""Where the processes of a job are, for a storm: on this machine, or in the pods of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.message import Message

from torch_edl.chaos.storm import Blow, Target
from torch_edl.config import JobConfig
from torch_edl.wire import master_pb2 as pb

EXITED = "exited"


class Site(Protocol):
    """A job that runs, and its processes."""

    where: str
    """``on this machine``, ``in namespace team``: for messages."""

    def config(self) -> JobConfig:
        """The configuration of the job."""
        ...

    def ask(self, request: Message) -> Any:
        """Makes one call to the master.

        Raises:
            EdlError: no master answers, or it rejects the call.
        """
        ...

    def living(self, listed: Iterable[pb.ProcessStatus]) -> list[Target]:
        """The processes of a status that live, and that a storm can reach."""
        ...

    def out_of_reach(self, listed: Iterable[pb.ProcessStatus]) -> int:
        """The number of processes that live and are spared, since they are elsewhere."""
        ...

    def strike(self, blow: Blow) -> bool:
        """Sends a signal, or has it sent; False: the process is gone."""
        ...

    def has_master(self) -> bool:
        """Whether the master lives, or somebody who may start it again."""
        ...

    def end(self) -> tuple[str, str]:
        """The state of the job without a master, and why it failed."""
        ...

    def close(self) -> None:
        """The storm is over."""
        ...
