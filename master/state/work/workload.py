"""The work of a job and its progress: leased tasks, or the loaders of a script in a ring. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from master.state.actions import Saved
from master.state.lifecycle import StatefulPart
from master.state.membership import Membership
from torch_edl.wire import master_pb2 as pb


class Workload(StatefulPart, Protocol):
    """The data of a job, and the progress in it."""

    members_save: bool
    """True if the members of the ring write the checkpoints and report them."""
    records_before: int
    """Records that were done before this run of the job."""

    def done(self, members: Membership) -> tuple[int, int]:
        """Return (records, minibatches) that are in the model."""
        ...

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        """Record the position of a ring's member. Returns whether it is the position of the ring.

        Args:
            counts: the report is of the newest ring, or the last one of a script. The model of an
                earlier ring may be lost.
        """
        ...

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        """Fill in epochs, records and tasks.

        Args:
            finished: the job is finished.
        """
        ...

    def restore(self, saved: Saved | None) -> None:
        """Reset to a checkpoint, or to the beginning."""
        ...


class ScriptProgress:
    """Progress of the scripts of a ring in their loaders, one loader after another, as members
    report.

    Implements :class:`Workload`.
    """

    members_save = True

    def __init__(self) -> None:
        self.records_before = 0
        self._restarted = False
        self._heartbeat = pb.HeartbeatRequest()
        """Heartbeat of the member with the farthest position in the newest loader."""
        self._steps = 0

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        self._steps = max(self._steps, heartbeat.version, heartbeat.steps)
        farthest = (self._heartbeat.pass_index, self._heartbeat.position)
        if counts and (heartbeat.pass_index, heartbeat.position) > farthest:
            self._heartbeat = heartbeat
            if self._restarted:
                # The rate excludes records done before the restart, whose duration is unknown.
                self.records_before, self._restarted = self._records, False
        return False

    @property
    def _records(self) -> int:
        return self._heartbeat.records_before + self._heartbeat.position

    def done(self, members: Membership) -> tuple[int, int]:
        return self._records, self._steps

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        heartbeat = self._heartbeat
        status.epoch = heartbeat.epoch
        # A finished script had as many epochs as are over.
        status.epochs = heartbeat.epoch if finished else heartbeat.epochs
        status.records_done = self._records
        if heartbeat.pass_records:
            status.records_total = (
                heartbeat.records_before + heartbeat.pass_records + heartbeat.records_to_come
            )
        if not heartbeat.epochs:
            status.records_begun = heartbeat.records_before

    def restore(self, saved: Saved | None) -> None:
        self._heartbeat, self._steps = pb.HeartbeatRequest(), 0  # the members report their position

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {}  # the members report

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._restarted = True
