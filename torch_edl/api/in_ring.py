"""A training script in a ring. A process that trains alone is a ring of one.

Every process runs the same loaders and evaluations. A process that joins late skips the passes that
the others have completed, and takes part from their current position.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from torch_edl.api.ending import Ending, Interrupts
from torch_edl.api.loader import Loader
from torch_edl.api.saver import Saver, TrainedSaver
from torch_edl.checkpoint import layout
from torch_edl.data.passes import Pass, Span
from torch_edl.engine.replica import Position
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import UsageError
from torch_edl.interfaces import ENDLESS, Update
from torch_edl.master_client.session import MasterSession
from torch_edl.nn.model_tables import tables_of
from torch_edl.pytorch.batches import Batches, StreamBatches, open_batches
from torch_edl.pytorch.state_dict import copied
from torch_edl.training.lockstep import PositionUpdates
from torch_edl.training.loop import Meter, loop

log = logging.getLogger(__name__)

Make = Callable[[int, int], bytes]
"""Function from (rank, world size) to the part of one process in a joint computation."""


class Totals(NamedTuple):
    """Sums over the trainings of a script."""

    passes: int = 0
    """Number of passes: loops over loaders and evaluations."""
    records: int = 0
    """Number of records that are in the models."""
    left: int = 0
    """Number of records that loops left out."""
    early: int = 0
    """Number of records that are not trained because the script left its loops early."""


_NOTHING = Totals()


class ScriptInRing:
    """The state of this process in a job whose processes train in step.

    :class:`~torch_edl.api.job.Job` documents the methods of the same names. All methods raise
    DismissedError if the job continues without this process.

    Args:
        rendezvous: forms the rings; None: this process trains alone.
        before: sums over the earlier trainings of the script.
    """

    on_servers = False

    def __init__(
        self,
        engine: RingEngine,
        rendezvous: RingRendezvous | None,
        session: MasterSession | None,
        saver: Saver,
        meter: Meter,
        ending: Ending,
        before: Totals = _NOTHING,
    ) -> None:
        self.engine = engine
        self.session = session
        self.saver = saver
        self._rendezvous = rendezvous
        self.meter = meter
        self._ending = ending
        self.interrupts = Interrupts(
            lambda: saver.save_last(engine, last=True), active=rendezvous is None and saver.keeps
        )
        self._passes = before.passes  # that began in this process
        engine.replica.position.pass_index = before.passes
        self._epochs = 0  # epochs of all loops that began
        # Records that earlier loops trained and left out; that this loop trained, and all of it.
        self.records_before, self.records_left = before.records, before.left
        self.records_here = self.records_planned = 0
        self.records_early = before.early  # of all loops that the script left early: not trained
        self._skipped = False  # a loop was skipped, since the model was trained on its records
        self._first_step = 0
        if session is not None:
            session.heartbeat.on_broken_ring = engine.membership.interrupt
        restored = saver.newest()
        self.restored = restored is not None
        """True if the job was restored from a checkpoint."""
        if restored is not None and rendezvous is None:
            manifest = layout.read(restored)
            was_on_servers = isinstance(saver, TrainedSaver) and manifest.on_servers
            engine.replica.restore(restored, values_only=was_on_servers)
            if isinstance(saver, TrainedSaver) and was_on_servers:  # servers save no position
                engine.replica.position = Position(
                    manifest.steps, ENDLESS, results=saver.results(before.passes)
                )
            self._first_step = self.step
            log.info("going on from %s, step %d", restored, self.step)

    # ---- state of the job ----

    @property
    def place(self) -> tuple[int, int] | None:
        """Rank and world size; None before the first ring."""
        membership = self.engine.membership
        formed = self._rendezvous is None or membership.ring
        return (membership.rank, membership.world) if formed else None

    @property
    def totals(self) -> Totals:
        """Sums over this training and the earlier ones."""
        return Totals(
            passes=self._passes,
            records=self.records_before + self.records_here,
            left=self.records_left + max(0, self.records_planned - self.records_here),
            early=self.records_early,
        )

    @property
    def step(self) -> int:
        return self.engine.steps

    @property
    def sync_gradients(self) -> bool:
        return self.engine.sync_gradients

    @property
    def late(self) -> bool:
        joined = self.engine.membership.joined
        return self.session is not None and self.session.ring > 0 and not joined

    @property
    def catching_up(self) -> bool:
        return self.late or self.engine.catching_up

    def state_dict(self) -> dict[str, torch.Tensor]:
        return copied(self.engine.model)

    # ---- passes ----

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Yield the batches of one pass over a loader.

        Raises:
            UsageError: an update has several batches, and the model has tables of ``torch_edl.nn``.
        """
        self._check_tables(loader.data)
        first, epochs = self._epochs, loader.data["epochs"]
        self._epochs += epochs
        self.records_left += max(0, self.records_planned - self.records_here)
        self.records_before, self.records_here = self.records_before + self.records_here, 0
        self.records_planned = loader.whole.total if loader.whole.records < ENDLESS else 0
        loader.until = loader.until or first + loader.passes * epochs
        # More iterations than planned: the script has its own loop over epochs.
        if (until := loader.until) < self._epochs:
            until = self._epochs if epochs > 1 else 0
        # Read before this process joins the ring, while the other processes do not wait.
        first_records = {} if self._rendezvous is None else loader.first_records
        if self.late:
            try:
                yield from self._warm_up(loader)
            except GeneratorExit:
                # The script left its loop; its next pass must have the same number as elsewhere.
                self._enter_pass()
                raise
        number = self._enter_pass(epochs=epochs)
        if self.engine.replica.position.pass_index != number:
            self.records_here = self.records_planned
            return
        updates = _PassUpdates(self, loader, number, first, until, first_records)
        seconds = None if self.session is None else self.session.progress.seconds
        batches = loop(self.engine, updates, self.meter, seconds)
        with (
            self.interrupts.put_off(),
            contextlib.closing(updates),
            contextlib.closing(batches),
        ):
            yield from batches
        if self.session is not None:
            self.session.heartbeat.beat()  # the process may end without another heartbeat

    def _check_tables(self, data: Mapping[str, Any]) -> None:
        several = data["accumulate"] > 1 or data["global_batch_size"] > data["batch_size"]
        if several and tables_of(self.engine.model):
            name = "accumulate" if data["accumulate"] > 1 else "global_batch_size"
            raise UsageError(
                f"{name}={data[name]}: the rows of tables of torch_edl.nn are updated with each "
                "batch; leave it out and use a larger batch_size"
            )

    def _warm_up(self, loader: Loader) -> Iterator[Any]:
        """Yield one batch whose update is discarded. Slow first calls run before this process
        joins the ring, while the other processes do not wait."""
        batches = open_batches(loader.given, loader.data, 0, loader.options)
        whole = batches.known_end(0, 1)
        self.meter.open(0)
        with self.engine.warming_up(), contextlib.closing(batches):
            try:
                yield batches.sample((0, min(whole.batch_size, whole.records)))
            finally:
                self.meter.settle(counted=False)

    def _enter_pass(self, *, epochs: int = 0) -> int:
        """Begin a pass and return its number; join the ring if necessary.

        Args:
            epochs: number of epochs of a loop over a loader; 0: the pass is an evaluation.
        """
        engine = self.engine
        number, self._passes = self._passes, self._passes + 1
        if not engine.membership.joined:
            engine.join()
            self._first_step = self.step
        position = engine.replica.position
        position.extend(number, epochs)
        if position.pass_index < number:
            # The script left the previous loop early; a traceback may keep its iterator alive.
            engine.settle()
            position.pass_index, position.records = number, 0
        # A process that joins late repeats the completed passes without training.
        engine.catching_up = position.pass_index > number
        self._skipped |= engine.catching_up and epochs > 0
        return number

    def collect(self, make: Make, merge: Callable[[list[bytes]], Any]) -> Any:
        """Return the value of ``merge`` for the parts of all processes."""
        return self._together(make, merge)[1]

    def gather(self, make: Make) -> list[bytes] | None:
        """Return the parts of all processes; None in a process that joined afterwards."""
        return self._together(make, lambda parts: None)[0]

    def _together(
        self, make: Make, merge: Callable[[list[bytes]], Any]
    ) -> tuple[list[bytes] | None, Any]:
        number, engine = self._enter_pass(), self.engine
        parts = engine.agree(make, lambda: engine.replica.position.pass_index == number)
        position = engine.replica.position
        if parts is not None:
            position.results[str(number)] = json.loads(json.dumps(merge(parts)))
            position.pass_index, position.records = number + 1, 0
        else:
            engine.catching_up = True
        return parts, position.results.get(str(number))

    # ---- the end ----

    def close(self) -> None:
        """Write the last checkpoint and the output if the script is over, and leave the ring."""
        ending, session, engine = self._ending, self.session, self.engine
        if ending.finished and self.restored and self._skipped and self.saver.keeps:
            self._note_if_over()
        if ending.finished or ending.last:
            if ending.last and session is not None:
                session.heartbeat.beat()  # learns whether the user stops the whole job
            asked = self._rendezvous is not None and self._rendezvous.stopping
            self.saver.save_last(engine, last=ending.last, asked=asked)
        if ending.finished and not ending.exits:
            self.saver.save_for_later(engine)
        if ending.finished and session is not None:
            output = session.config.checkpoint.output
            self.saver.write_output(engine, output, job=session.config.name)
        with ending.dismissal():
            engine.close(finished=ending.finished)

    def _note_if_over(self) -> None:
        """Log a warning if the restored checkpoint was already fully trained."""
        newest, rank = self.saver.newest(), self.engine.membership.rank
        if rank == 0 and newest is not None and self.step == self._first_step:
            log.warning(
                "%s holds all that this script trains; raise epochs to train on from there", newest
            )


class _PassUpdates(PositionUpdates):
    """The updates of one pass over a loader.

    Args:
        number: number of the pass.
        first: number of epochs of all loops before this one.
        until: number of epochs of the job; 0: unknown.
        first_records: digests of some records, unless the dataset is a stream.
    """

    _batches: Batches | StreamBatches

    def __init__(
        self,
        script: ScriptInRing,
        loader: Loader,
        number: int,
        first: int,
        until: int,
        first_records: Mapping[str, str],
    ) -> None:
        batches = open_batches(loader.given, loader.data, number, loader.options)
        super().__init__(script.engine, batches)
        self._script = script
        self._number = number
        self._first, self._until = first, until
        self._epochs = loader.data["epochs"]
        self._data = batches.data
        self._first_records = first_records
        self._engine.replica.position.go_through(self._data.identity, self._epochs)

    def updates(self) -> Iterator[Update]:
        engine, ring = self._engine, self._engine.membership
        while (position := engine.replica.position).pass_index == self._number:
            self._data = self._batches.known_end(position.records, ring.world)
            start = self._data.next_start(position.records, ring.world)
            if isinstance(self._batches, StreamBatches):
                self._first_records = self._batches.first_records
            engine.compare(self._first_records)
            if start >= self._data.total:
                position.end()
                return
            update = self._update_at(start, self._data)
            update.of_rank = partial(self._names, start, self._data, ring.world)
            yield update
        # A ring broke, and the state was received from a member that is in a later pass.
        self._script.records_here = self._script.records_planned
        engine.catching_up = True

    def _names(self, start: int, data: Pass, world: int, rank: int) -> str:
        return self._batches.names(data.part(start, rank, world).spans)

    def _name(self, span: Span) -> str:
        return self._batches.names([span])

    def after(self, update: Update, *, counted: bool) -> None:
        if counted:
            self._script.saver.after_step(self._engine)
            if self._script.session is not None:
                self._tell(self._script.session)
        self._engine.reform_if_asked()
        self._script.interrupts.heed()

    def leave(self) -> bool:
        """Settle the last update when the script leaves the loop; return False if the pass is over.

        Until the next pass begins, a checkpoint continues with the rest of this pass.
        """
        engine, script = self._engine, self._script
        if engine.replica.position.pass_index != self._number:
            return False
        settled = engine.settle()
        position = engine.replica.position
        if position.pass_index == self._number and self._data.records < ENDLESS:
            start = self._data.next_start(position.records, engine.membership.world)
            script.records_early += self._data.total - start
            if script.session is not None:
                self._tell(script.session)
                script.session.heartbeat.beat()
        return settled

    def _tell(self, session: MasterSession) -> None:
        """Report the progress of this pass to the master. The length of a stream counts as 0, even
        at its end: the job cannot know whether the stream yielded all records of the data."""
        position, data, script = self._engine.replica.position, self._data, self._script
        script.records_here = position.records
        records = 0 if isinstance(self._batches, StreamBatches) else data.records
        start = data.next_start(position.records, self._engine.membership.world)
        over = self._epochs if start >= data.total else start // data.records
        status = session.progress
        status.phase = "training"
        status.version = position.step
        status.stepped(position.step)
        status.position = status.records = position.records
        status.pass_index = position.pass_index
        status.nan_updates = position.nan_updates
        status.pass_records = records * self._epochs
        status.records_before, status.records_left = script.records_before, script.records_left
        status.records_early = script.records_early
        status.records_to_come = records * max(0, self._until - self._first - self._epochs)
        status.epoch, status.epochs = self._first + over, self._until
        status.note(script.meter.newest)
