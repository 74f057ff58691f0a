"""A training script in a ring, or alone: a ring of one.

Every process goes through the same loaders and evaluations. A process that joins late runs through
what the others did before, and takes part from where they are.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import torch

from torch_edl.data.batches import ENDLESS, open_batches
from torch_edl.data.order import Pass
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.trainer.ending import Ending
from torch_edl.trainer.interrupts import Interrupts
from torch_edl.trainer.loader import Loader
from torch_edl.trainer.lockstep import PassUpdates
from torch_edl.trainer.loop import Loop
from torch_edl.trainer.metrics import Meter
from torch_edl.trainer.part import Make, Merge
from torch_edl.trainer.saver import Saver, write_output

log = logging.getLogger(__name__)


class ScriptInRing:
    """This process's part in a job whose processes train in step; see
    :class:`~torch_edl.trainer.part.Part`.

    Args:
        rendezvous: where rings are formed; None: this process trains alone.
    """

    def __init__(
        self,
        engine: RingEngine,
        rendezvous: RingRendezvous | None,
        session: MasterSession | None,
        saver: Saver,
        meter: Meter,
        ending: Ending,
        interrupts: Interrupts | None,
    ) -> None:
        self.engine = engine
        self._rendezvous = rendezvous
        self._session = session
        self._saver = saver
        self._meter = meter
        self._ending = ending
        self._interrupts = interrupts
        self._passes = 0  # that this process went into: of loaders, and evaluations
        self.epochs_begun = 0
        self._records_before = self._records_here = 0  # of the loops before, and of the newest
        self._skipped = False  # a loader, whose records were in the model before
        self._first_step = 0
        self.restored = False
        if session is not None:
            session.heartbeat.on_broken_ring = engine.interrupt
        restored = saver.newest()
        if restored is not None:
            self.restored = True
            if rendezvous is None:
                engine.restore(restored, values_only=False)
                self._first_step = self.step
                log.info("going on from %s, step %d", restored, self.step)

    # ---- what a job says ----

    @property
    def rank(self) -> int:
        """See :attr:`Job.rank`."""
        # Before the first ring: what the launcher said.
        return self.engine.rank if self._formed else int(os.environ.get("RANK", "0"))

    @property
    def world_size(self) -> int:
        """See :attr:`Job.world_size`."""
        return self.engine.world if self._formed else int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def _formed(self) -> bool:
        return self._rendezvous is None or self.engine.rings > 0

    @property
    def step(self) -> int:
        """See :attr:`Job.step`."""
        return self.engine.steps

    @property
    def sync_gradients(self) -> bool:
        """See :attr:`Job.sync_gradients`."""
        return self.engine.sync_gradients

    @property
    def late(self) -> bool:
        """Whether others trained before this process came, which has not joined them yet."""
        return self._session is not None and self._session.ring > 0 and not self.engine.joined

    @property
    def catching_up(self) -> bool:
        """See :attr:`Job.catching_up`."""
        return self.late or self.engine.catching_up

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See :meth:`Job.state_dict`."""
        return self.engine.state_dict()

    # ---- passes ----

    def batches(self, loader: Loader) -> Iterator[Any]:
        """See :class:`~torch_edl.trainer.part.Part`."""
        first, epochs = self.epochs_begun, loader.data["epochs"]
        self.epochs_begun += epochs
        self._records_before, self._records_here = self._records_before + self._records_here, 0
        until = loader.epochs_to_come
        if until < self.epochs_begun:  # the loop is the script's own
            until = self.epochs_begun if epochs > 1 else 0
        if self.late:
            try:
                yield from self._warm_up(loader)
            except GeneratorExit:
                # The script left its loop there; it is in the same pass as the others all the same.
                self._enter_pass()
                raise
        number = self._enter_pass(epochs=epochs)
        engine = self.engine
        if engine.replica.position.pass_index != number:
            self._records_here = loader.whole.total if loader.whole.records < ENDLESS else 0
            return
        batches = open_batches(loader.given, loader.data, number, loader.options)
        engine.replica.position.go_through(batches.data.identity, epochs)

        def counted(known: Pass) -> None:
            self._saver.after_step(engine)
            if self._session is not None:
                self._tell(self._session, known, epochs, first, until)

        source = PassUpdates(
            engine, batches, number,
            check=lambda: self._check_pass(number), after_update=counted, between=self._heed,
        )  # fmt: skip
        loop = iter(Loop(engine, source, self._meter))
        with self._put_off(), contextlib.closing(batches), contextlib.closing(loop):
            yield from loop

    def _put_off(self) -> contextlib.AbstractContextManager[None]:
        """Within it a signal that ends the process waits for the end of the update."""
        return contextlib.nullcontext() if self._interrupts is None else self._interrupts.put_off()

    def _heed(self) -> None:
        if self._interrupts is not None:
            self._interrupts.heed()

    def _tell(
        self, session: MasterSession, data: Pass, epochs: int, first: int, until: int
    ) -> None:
        """How far this pass is; the end of a stream is known when it is there."""
        position = self.engine.replica.position
        self._records_here = position.records
        records = 0 if data.records >= ENDLESS else data.records
        start = data.next_start(position.records, self.engine.world)
        over = epochs if start >= data.total else start // data.records
        status = session.progress
        status.phase = "training"
        status.steps = status.version = position.step
        status.position = status.records = position.records
        status.pass_index = position.pass_index
        status.pass_records = data.total if records else 0
        status.records_before = self._records_before
        status.records_to_come = records * max(0, until - first - epochs)
        status.epoch, status.epochs = first + over, until
        status.note(self._meter.newest)

    def _warm_up(self, loader: Loader) -> Iterator[Any]:
        """One batch that counts for nothing: what is slow the first time is over when this
        process asks in, and the others wait for it."""
        batches = open_batches(loader.given, loader.data, 0, loader.options)
        whole = batches.known_end(0, 1)
        self.engine.warm_up()
        self._meter.open(0)
        try:
            yield batches.sample((0, min(whole.batch_size, whole.records)))
        finally:
            self._meter.settle(counted=False)
            self.engine.abandon()
            batches.close()

    def _enter_pass(self, *, epochs: int = 0) -> int:
        """The number of a pass that begins; the engine is in its ring then.

        Args:
            epochs: of a pass over data; 0: it is an evaluation.
        """
        engine = self.engine
        number, self._passes = self._passes, self._passes + 1
        if not engine.joined:
            engine.join()
            self._first_step = self.step
        position = engine.replica.position
        position.extend(number, epochs)
        if position.pass_index < number:
            # The loop before was left early; a traceback may keep its iterator from ending.
            engine.settle()
            position.pass_index, position.records = number, 0
        # A process that joins late runs through what the others did before it came.
        engine.catching_up = position.pass_index > number
        self._skipped |= engine.catching_up and epochs > 0
        return number

    def _check_pass(self, number: int) -> None:
        """Raises UsageError if another pass began while that one was under way."""
        if self._passes != number + 1:
            raise UsageError(
                "another loop over a loader, or an evaluation, began inside this loop; put it "
                "after the loop (an epoch each: epochs=1)"
            )

    def together(self, make: Make, merge: Merge) -> tuple[list[bytes] | None, Any]:
        """See :class:`~torch_edl.trainer.part.Part`."""
        number, engine = self._enter_pass(), self.engine
        parts = None
        made = engine.agree(make, lambda: engine.replica.position.pass_index == number)
        position = engine.replica.position
        if made is not None:
            parts, result = merge(made)
            position.results[str(number)] = json.loads(json.dumps(result))
            position.pass_index, position.records = number + 1, 0
        else:
            engine.catching_up = True
        return parts, position.results.get(str(number))

    # ---- the end ----

    def close(self) -> None:
        """See :class:`~torch_edl.trainer.part.Part`."""
        ending, session, engine = self._ending, self._session, self.engine
        if ending.finished and self.restored and self._skipped:
            self._note_if_over()
        if ending.finished or ending.last:
            if ending.last and session is not None:
                session.heartbeat.beat()  # does the user stop the whole job?
            asked = self._rendezvous is not None and self._rendezvous.stopping
            self._saver.save_last(engine, last=ending.last, asked=asked)
        if ending.finished and session is not None:
            write_output(engine, session.config.checkpoint.output, job=session.config.name)
        with ending.dismissal():
            engine.leave(finished=ending.finished)

    def save_interrupted(self) -> None:
        """See :class:`~torch_edl.trainer.part.Part`."""
        self._saver.save_last(self.engine, last=True)

    def release(self) -> None:
        """A cell of a notebook is run again: another part takes the place of this one."""
        self.engine.release()

    def _note_if_over(self) -> None:
        """Says so where there was nothing left to train."""
        newest = self._saver.newest()
        if self.rank == 0 and newest is not None and self.step == self._first_step:
            log.warning(
                "%s holds all that this script trains; raise epochs to train on from there", newest
            )
