"""How far a script has come that goes through its data by itself, in a ring. Pure."""

from __future__ import annotations

from typing import Protocol

from torch_edl.wire import master_pb2 as pb


class Told(Protocol):
    """What a member tells of its data."""

    position: int
    pass_records: int
    epoch: int
    epochs: int
    records_before: int
    records_to_come: int


class Passes:
    """The loops of a script over its loaders, one after the other; never back but by a new one."""

    def __init__(self) -> None:
        self._number = 0
        self._done = 0  # records of the pass at hand that are in the model
        self._of = 0  # all of its records; 0: not known
        self._before = 0  # records of the passes before
        self._epoch = 0
        self._epochs = 0
        self._to_come = 0

    @property
    def records(self) -> int:
        """Of all passes, that are in the model."""
        return self._before + self._done

    def moved(self, number: int, told: Told) -> None:
        """A member is at that place of pass ``number``; who lags behind says nothing new."""
        if number < self._number or (number == self._number and told.position <= self._done):
            return
        self._number, self._done, self._of = number, told.position, told.pass_records
        self._epoch, self._epochs = told.epoch, told.epochs
        self._before, self._to_come = told.records_before, told.records_to_come

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        """Fills in epochs and records.

        Args:
            finished: the scripts are over: there were as many epochs as are over.
        """
        status.epoch = self._epoch
        status.epochs = self._epoch if finished else self._epochs
        status.records_done = self.records
        if self._of:
            status.records_total = self._before + self._of + self._to_come
        if not self._epochs:
            status.records_begun = self._before
