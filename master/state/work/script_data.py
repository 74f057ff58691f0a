"""What the workers of a script report: their data, which is compared between workers, and their
position in it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from master.state.actions import Saved
from master.state.membership import Membership
from master.state.work.ledger import TaskLedger
from torch_edl.config import JobConfig
from torch_edl.data.resuming import SAME_SAMPLES, difference
from torch_edl.errors import UsageError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

_PARTS = ("records", "epochs", "batch_size", "records_per_task", "shuffle", "seed", "files")
MOST_RECORDS = 1 << 53


def option_for_more(config: JobConfig) -> str:
    """Return the option to raise if a checkpoint already holds all the training."""
    if config.train.max_steps:
        return "--epochs or --max-steps"
    return "epochs=" if config.kind == "script" else "--epochs"


def with_data(config: JobConfig, script: pb.ScriptData) -> JobConfig:
    """Return the job's configuration with the data of its loader; UsageError if a number is out of
    range."""
    if min(script.records, script.records_per_task) < 1:
        raise UsageError(f"job.loader: {script.records:,} records; at least one is needed")
    if script.records * max(script.epochs, 1) > MOST_RECORDS:
        raise UsageError(
            f"job.loader: {script.records:,} records in {script.epochs:,} epochs; at most "
            f"{MOST_RECORDS:,} are counted"
        )
    data = dataclasses.replace(
        config.data,
        batch_size=script.batch_size,
        records_per_task=script.records_per_task,
        epochs=script.epochs,
        shuffle=script.shuffle,
    )
    return dataclasses.replace(
        config, data=data, train=dataclasses.replace(config.train, seed=script.seed)
    )


def check_same(first: pb.ScriptData, second: pb.ScriptData) -> None:
    """Raise UsageError with the first difference between the data of two workers."""
    parts = [{name: getattr(one, name) for name in _PARTS} for one in (first, second)]
    differs = difference(*parts)
    if differs is not None:
        others, mine = differs
        raise UsageError(
            f"job.loader: this process has {mine}, another had {others.removesuffix(' records')}; "
            "all processes must go through the same data"
        )
    names = first.first_records.keys() & second.first_records.keys()
    if names and all(first.first_records[n] != second.first_records[n] for n in names):
        raise UsageError(
            "job.loader: the first records of the dataset of this process are not those of another "
            f"process; {SAME_SAMPLES}"
        )
    if first.samples != second.samples:
        raise UsageError(
            "job.loader: the dataset of this process stores other samples than that of another "
            f"process; {SAME_SAMPLES}"
        )


class ScriptProgress:
    """Progress of the scripts of a ring in their loaders, one loader after another, as members
    report."""

    members_save = True
    """True if the members of the ring write the checkpoints and report them."""

    def __init__(self, ledger: TaskLedger) -> None:
        self._ledger = ledger
        self.records_before = 0
        """Records that were done before this run of the job."""
        self._restarted = False
        self._heartbeat = pb.HeartbeatRequest()
        """Heartbeat of the member with the farthest position in the newest loader."""
        self._steps = self._steps_before = 0  # of the current training, and of those before

    def heard(self, heartbeat: pb.HeartbeatRequest, *, counts: bool) -> bool:
        """Record the position of a ring's member. Returns whether it is the position of the ring. A
        report of an earlier ring, whose model may be lost, does not count unless it is the last one
        of a script."""
        self._steps = max(self._steps, heartbeat.version, heartbeat.steps)
        if counts and _place(heartbeat) > _place(self._heartbeat):
            self._heartbeat = heartbeat
            self._ledger.heard(heartbeat)
            if self._restarted:
                # The rate excludes records done before the restart, whose duration is unknown.
                self.records_before, self._restarted = self._records, False
        return False

    @property
    def _records(self) -> int:
        return self._heartbeat.records_before + self._heartbeat.position

    def done(self, members: Membership) -> tuple[int, int]:
        """Return (records, minibatches) that are in the model."""
        return self._records, self._steps_before + self._steps

    def describe(self, status: pb.GetStatusResponse, *, finished: bool) -> None:
        """Fill in epochs, records and tasks of a status."""
        heartbeat = self._heartbeat
        status.epoch = heartbeat.epoch
        # A finished script had as many epochs as are over.
        status.epochs = heartbeat.epoch if finished else heartbeat.epochs
        status.records.done = self._records
        if heartbeat.pass_records:
            status.records.total = (
                heartbeat.records_before + heartbeat.pass_records + heartbeat.records_to_come
            )
        if not heartbeat.epochs:
            status.records.begun = heartbeat.records_before
        if finished:
            status.records_early = heartbeat.records_early

    def restore(self, saved: Saved | None) -> None:
        """Reset to a checkpoint, or to the beginning."""
        self._ledger.restored(Watermarks())
        self._heartbeat, self._steps = pb.HeartbeatRequest(), 0  # the members report their position

    def begin_training(self, *, again: bool) -> None:
        """Begin the next training, whose members continue the numbers of passes and records; or
        begin an earlier training ``again``."""
        if again:
            self.restore(None)
            self._steps_before = 0
        self._steps, self._steps_before = 0, self._steps_before + self._steps

    # ---- a restart of the master ----

    def to_state(self) -> dict[str, Any]:
        return {"steps_before": self._steps_before}  # the members report the rest

    def from_state(self, state: Mapping[str, Any], now: float) -> None:
        self._restarted, self._steps_before = True, state["steps_before"]


def _place(heartbeat: pb.HeartbeatRequest) -> tuple[int, int, int]:
    return heartbeat.pass_index, heartbeat.position, heartbeat.records_early
