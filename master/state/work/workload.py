"""What a job goes through, and how far it is: the tasks that the master leases, or the loaders of a
script in a ring, which the master only hears of. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from master.state.actions import Saved
from master.state.lifecycle import StatefulPart
from master.state.membership import Membership
from torch_edl.wire import master_pb2 as pb


class Workload(StatefulPart, Protocol):
    """What there is to train on, and how far the job is in it."""

    members_save: bool
    """The members of the ring write the checkpoints, and say so when they have."""
    records_before: int
    """Records that were done before this run of the master."""

    def done(self, members: Membership) -> tuple[int, int]:
        """(records, minibatches) that are in the model."""
        ...

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        """A member of a ring reported its position; whether that is the position of the ring.

        Args:
            counts: the report is of the newest ring, or the last word of a script: what a member
                reports of an earlier ring may be of a model that is lost.
        """
        ...

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        """Fills in epochs, records and tasks.

        Args:
            finished: the job is finished.
        """
        ...

    def restore(self, saved: Saved | None) -> None:
        """Training goes back to a checkpoint, or to the beginning."""
        ...


class ScriptProgress:
    """How far the scripts of a ring are in their loaders, one after the other, as members report.

    Implements :class:`Workload`.
    """

    members_save = True

    def __init__(self) -> None:
        self.records_before = 0
        self._restarted = False
        self._heartbeat = pb.HeartbeatRequest()
        """Of the member that is farthest, in the newest loader."""
        self._steps = 0

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        self._steps = max(self._steps, heartbeat.version, heartbeat.steps)
        farthest = (self._heartbeat.pass_index, self._heartbeat.position)
        if counts and (heartbeat.pass_index, heartbeat.position) > farthest:
            self._heartbeat = heartbeat
            if self._restarted:
                # How long these took is not known.
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
        self._heartbeat, self._steps = pb.HeartbeatRequest(), 0  # the members report how far it is

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {}  # the members report

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._restarted = True
