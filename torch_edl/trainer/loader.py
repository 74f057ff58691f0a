"""The batches of a script's training loop: what stands between two of them is the step."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Sampler

from torch_edl.data.batches import ENDLESS, Batches, StreamBatches, open_batches
from torch_edl.data.order import Pass
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError

if TYPE_CHECKING:
    from torch_edl.master_client.session import MasterSession
    from torch_edl.trainer.job import Job


class Reading:
    """The loops over loaders that have begun."""

    def __init__(self) -> None:
        self._loops: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()

    def add(self, loop: Generator[Any]) -> None:
        """One begins."""
        self._loops.add(loop)

    def close(self) -> None:
        """Ends those that were left half-read: the update that such a one made last counts."""
        for loop in list(self._loops):
            if inspect.getgeneratorstate(loop) != inspect.GEN_RUNNING:
                loop.close()

    def forget(self) -> None:
        """They are another process's: this one was forked."""
        self._loops.clear()


# While there are modules left to do it.
_of_all_jobs = Reading()
atexit.register(_of_all_jobs.close)
os.register_at_fork(after_in_child=_of_all_jobs.forget)


class DealtRecords(Sampler[int]):
    """In the place of a ``DataLoader``'s sampler: the job deals the records out."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Records of this process in an epoch, about: those of all over the processes."""
        return -(-len(self._loader.dataset) // self._loader.world_size)

    def __iter__(self) -> Iterator[int]:
        raise UsageError("loader.sampler: the job deals the records out; go over the loader")

    def set_epoch(self, epoch: int) -> None:
        """Nothing: each pass has an order of its own."""


class Loader:
    """Iterable once per pass; see :meth:`Job.loader`.

    It has what scripts read of a ``DataLoader``.
    """

    def __init__(
        self, job: Job, dataset: Any, data: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._job = job
        self._dataset = dataset
        self._data = data
        self._options = options
        self._passes = 0
        self._first = 0  # epoch of the job at which this pass begins
        self._until = 0  # epochs of the job that there will be; 0: nobody knows
        # What cannot work is said here rather than in the first step.
        batches = open_batches(dataset, data, 0, options)
        self._length = batches.data
        self.dataset: Any = batches.dataset
        """What was given; of paths of files their records."""
        self.batch_size: int = data["batch_size"]
        self.drop_last: bool = data["drop_last"]
        self.num_workers: int = options.get("num_workers", 0)
        self.pin_memory: bool = options.get("pin_memory", False)
        self.collate_fn: Any = batches.collate
        self.sampler = DealtRecords(self)

    @property
    def world_size(self) -> int:
        """Processes that share the records now."""
        return self._job.world_size

    def repeat(self, passes: int) -> None:
        """It will be gone through so often; parameter servers must know before the first time."""
        self._passes = passes
        self._until = self._job.epochs_begun + passes * self._data["epochs"]

    def __len__(self) -> int:
        """Batches of this process in a pass, if the ring stays as it is."""
        data, world = self._length, self._job.world_size
        if isinstance(self._dataset, IterableDataset):
            raise TypeError("an IterableDataset has no length")
        count = position = 0
        for _ in range(data.epochs):
            whole, rest = divmod(data.records, data.update_size(world))
            # Who has no record of an update gets a batch all the same.
            count += whole * max(1, len(data.part(0, self._job.rank, world).spans))
            position += whole * data.update_size(world)
            if rest and not data.drop_last:
                count += max(1, len(data.part(position, self._job.rank, world).spans))
            position = (position // data.records + bool(rest)) * data.records
        return count

    def __iter__(self) -> Generator[Any]:
        batches = self._batches()
        _of_all_jobs.add(batches)
        self._job.reading.add(batches)
        return batches

    def _batches(self) -> Generator[Any]:
        job = self._job
        if job._served is not None:
            with job.ending.dismissal():
                yield from job._served.batches(
                    self._dataset, self._data, self._options, passes=self._passes
                )
            return
        self._first = job.epochs_begun
        job.epochs_begun += self._data["epochs"]
        job.records_before, job.records_here = job.records_before + job.records_here, 0
        if self._until < job.epochs_begun:  # the loop is the script's own
            self._until = job.epochs_begun if self._data["epochs"] > 1 else 0
        if job.late and job._engine is not None:
            try:
                yield from self._warm_up()
            except GeneratorExit:
                # The script left its loop there; it is in the same pass as the others all the same.
                job.enter_pass()
                raise
        number, engine = job.enter_pass(epochs=self._data["epochs"])
        if engine.replica.position.pass_index != number:
            job.records_here = self._length.total if self._length.records < ENDLESS else 0
            return
        batches = open_batches(self._dataset, self._data, number, self._options)
        engine.replica.position.go_through(batches.data.identity, self._data["epochs"])
        try:
            # A process that is dismissed does not come back here: its readers end before.
            with job.ending.dismissal(), contextlib.closing(batches), job.interrupts():
                while (position := engine.replica.position).pass_index == number:
                    data = batches.known_end(position.records, engine.world)
                    start = data.next_start(position.records, engine.world)
                    if start >= data.total:
                        position.end()
                        return
                    yield from self._update(engine, batches, data, start)
            # A ring broke, and the state that came then is of a member that is in a later pass.
            engine.catching_up = True
        finally:
            if engine.replica.position.pass_index == number:
                # The script left its loop. The next pass begins where it begins; until then the
                # rest of this one is what a checkpoint goes on with.
                job._meter.settle(counted=engine.settle())

    def _update(
        self, engine: RingEngine, batches: Batches | StreamBatches, data: Pass, start: int
    ) -> Iterator[Any]:
        job = self._job
        pass_index = engine.replica.position.pass_index
        part = data.part(start, engine.rank, engine.world)
        engine.set_update_size(start + part.records - engine.replica.position.records)
        for number, span in enumerate(part.spans):
            batch = batches.take(span, start, engine.rank, engine.world)
            records = span[1] - span[0]
            job._meter.open(records)
            engine.begin(
                records / part.records,
                last=number == len(part.spans) - 1,
                lead=engine.rank == 0,
            )
            yield batch
            job.check_pass(pass_index)
            if engine.broken:
                break
        if not part.spans:
            # Nothing is left for this process; it takes the others' gradients all the same.
            job._meter.open(0)
            engine.begin(0.0, last=True, lead=False)
            yield batches.sample((start, start + min(2, part.records)))
            job.check_pass(pass_index)
        counted = engine.finish()
        job._meter.settle(counted=counted)
        if counted:
            job._saver.after_step(engine)
            if job._session is not None:
                self._tell(job._session, engine, data)
        engine.reform_if_asked()
        job.heed_interrupt()

    def _tell(self, session: MasterSession, engine: RingEngine, data: Pass) -> None:
        """How far this pass is; the end of a stream is known when it is there."""
        position, epochs = engine.replica.position, self._data["epochs"]
        self._job.records_here = position.records
        records = 0 if data.records >= ENDLESS else data.records
        start = data.next_start(position.records, engine.world)
        over = epochs if start >= data.total else start // data.records
        told = session.progress
        told.phase = "training"
        told.steps = told.version = position.step
        told.position = told.records = position.records
        told.pass_index = position.pass_index
        told.pass_records = data.total if records else 0
        told.records_before = self._job.records_before
        told.records_to_come = records * max(0, self._until - self._first - epochs)
        told.epoch, told.epochs = self._first + over, self._until
        told.note(self._job._meter.newest)

    def _warm_up(self) -> Iterator[Any]:
        """One batch that counts for nothing: what is slow the first time is over when this
        process asks in, and the others wait for it."""
        batches = open_batches(self._dataset, self._data, 0, self._options)
        engine = self._job._engine
        assert engine is not None
        data = batches.known_end(0, 1)
        engine.warm_up()
        self._job._meter.open(0)
        try:
            yield batches.sample((0, min(data.batch_size, data.records)))
        finally:
            self._job._meter.settle(counted=False)
            engine.abandon()
            batches.close()
