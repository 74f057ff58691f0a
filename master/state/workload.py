"""What a job goes through, and how far it is: the tasks that the master leases, or the loaders of a
script in a ring, which the master only hears of. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from master.state.actions import Saved
from master.state.lifecycle import Part
from master.state.membership import Member, Membership
from torch_edl.wire import master_pb2 as pb


class Workload(Part, Protocol):
    """What there is to train on, and how far the job is in it."""

    members_save: bool
    """The members of the ring write the checkpoints, and say so when they have."""
    records_before: int
    """Records that were done before this run of the master."""

    def done(self, members: Membership) -> tuple[int, int]:
        """(records, minibatches) that are in the model."""
        ...

    def heard(self, member: Member, *, newest: bool) -> bool:
        """A member of a ring reported its position; whether that is the position of the ring."""
        ...

    def heard_last(self, request: pb.HeartbeatRequest) -> None:
        """A worker that has left the ring reports how far it was."""
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


class Told(Protocol):
    """What a member of a ring reports of its data."""

    position: int
    pass_records: int
    epoch: int
    epochs: int
    records_before: int
    records_to_come: int


class ScriptProgress:
    """How far the scripts of a ring are in their loaders, one after the other, as members report.

    Implements :class:`Workload`.
    """

    members_save = True

    def __init__(self) -> None:
        self.records_before = 0
        self._restarted = False
        self._clear()

    def _clear(self) -> None:
        self._number = 0  # of the newest loader
        self._done = 0  # its records that are in the model
        self._of = 0  # all of its records; 0: not known
        self._before = 0  # records of the loaders before
        self._to_come = 0
        self._epoch = 0
        self._epochs = 0
        self._steps = 0

    @property
    def records(self) -> int:
        """Records of all loaders that are in the model."""
        return self._before + self._done

    def heard(self, member: Member, *, newest: bool) -> bool:
        """See :class:`Workload`."""
        self._steps = max(self._steps, member.version, member.steps)
        if newest:
            self.moved(member.data_pass, member)
        return False

    def heard_last(self, request: pb.HeartbeatRequest) -> None:
        """See :class:`Workload`."""
        self._steps = max(self._steps, request.version, request.steps)
        self.moved(request.pass_index, request)

    def moved(self, number: int, told: Told) -> None:
        """A member is at that place of loader ``number``; one that lags behind changes nothing."""
        if number < self._number or (number == self._number and told.position <= self._done):
            return
        self._number, self._done, self._of = number, told.position, told.pass_records
        self._epoch, self._epochs = told.epoch, told.epochs
        self._before, self._to_come = told.records_before, told.records_to_come
        if self._restarted:
            # How long these took is not known.
            self.records_before, self._restarted = self.records, False

    def done(self, members: Membership) -> tuple[int, int]:
        """See :class:`Workload`."""
        return self.records, self._steps

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        """See :class:`Workload`; a finished script had as many epochs as are over."""
        status.epoch = self._epoch
        status.epochs = self._epoch if finished else self._epochs
        status.records_done = self.records
        if self._of:
            status.records_total = self._before + self._of + self._to_come
        if not self._epochs:
            status.records_begun = self._before

    def restore(self, saved: Saved | None) -> None:
        """See :class:`Workload`; the members report how far the checkpoint is."""
        self._clear()

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        """What a restarted master needs, as JSON can say it; the members report the rest."""
        return {}

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        """See :class:`Workload`."""
        self._restarted = True
