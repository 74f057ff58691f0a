"""The interface of watches: judges of the processes of a job, in the process of the master."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch_edl.events import Event
    from torch_edl.wire import master_pb2 as pb


class Verdict(NamedTuple):
    """A process that needs attention, and what to do about it.

    While a process has a verdict, its heartbeats carry what keeps the processes of its machine
    from running (:mod:`torch_edl.processes.pressure`), which ``machine`` of its status shows.
    """

    role: str
    """``worker`` or ``ps``."""
    id: int
    slow: float = 0.0
    """Rate of the process as a part of the usual rate, for the status; 0 if it is not slow."""
    event: Event | None = None
    """Event for the log of the job; None: no event."""
    replace: bool = False
    """True to replace the process. A worker first returns its tasks. The servers are replaced
    together, because the model moves to new ones; this needs files that all processes share. The
    next processes avoid the machine if there is a choice. An event that is a
    :class:`~torch_edl.events.Judged` says what was done."""


class Watch(Protocol):
    """Judges the processes of a job by its status, once a second.

    An entry point of the group ``torch_edl.watches`` names a class: ``(config: JobConfig) ->
    Watch``. The master of each job has one instance of every installed watch, and imports no torch.
    A watch that raises an exception is not asked again.
    """

    def look(self, status: pb.GetStatusResponse, now: float) -> Iterable[Verdict]:
        """Return a verdict for each process that needs attention now.

        Args:
            status: the current status, with all processes.
            now: monotonic time in seconds, without pauses of the master.
        """
