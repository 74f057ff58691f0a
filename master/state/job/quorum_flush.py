"""The application of pushes that wait for their quorum in sync mode, before the model is evaluated
or saved at the end of an epoch. Pure."""

from __future__ import annotations

from master.state.actions import Flush, Flushed
from torch_edl.config import JobConfig
from torch_edl.wire import master_pb2 as pb


class QuorumFlush:
    """The flush of the servers; nothing waits for a quorum in async mode."""

    def __init__(self, config: JobConfig) -> None:
        self._job = config.name
        self._is_needed = config.trains and config.train.mode == "sync"
        self._asked = False
        self.done = not self._is_needed
        """True if no push waits for its quorum."""

    def restart(self) -> None:
        """Require a flush of new servers."""
        self._asked = False
        self.reset()

    def reset(self) -> None:
        """Require a flush: more is trained."""
        self.done = not self._is_needed

    def ask(self, cluster: pb.Cluster) -> list[Flush]:
        """Return the action that flushes the servers; empty if one is in progress."""
        if self._asked:
            return []
        self._asked = True
        return [Flush(cluster.servers, cluster.incarnation, self._job)]

    def apply(self, event: Flushed) -> None:
        """Record the end of a flush."""
        self._asked, self.done = False, event.success
