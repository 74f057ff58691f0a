"""Fitting of a script's preprocessing, by all processes of the job together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset

from torch_edl.api.saver import Saver
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.data.sources import Source
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.errors import UsageError
from torch_edl.interfaces.preprocessing import Fittable
from torch_edl.master_client.leases import HeldLease
from torch_edl.master_client.session import MasterSession
from torch_edl.pytorch.batches import as_rows, is_paths, open_sources, samples
from torch_edl.training.one_off import fit
from torch_edl.wire import master_pb2 as pb

_DATASET = "dataset"
_RECORDS = 1 << 15  # records in memory at once, in a process that fits alone


def fit_script(columns: Fittable, data: Any, session: MasterSession | None, saver: Saver) -> None:
    """Fit the columns, or restore them from a checkpoint; see :meth:`~torch_edl.api.job.Job.fit`.

    Args:
        session: session with the master; None: no master, so each process fits alone.
        saver: stores the fitted columns in the checkpoints.

    Raises:
        DismissedError: the job continues without this process.
    """
    newest = saver.newest()
    masters = session is not None and session.config.checkpoint.dir
    if not masters and newest is not None and (newest / PREPROCESSING_FILE).exists():
        columns.load(newest)
    elif session is None:
        columns.fit(_Records(data))
    else:
        records = _Records(data)
        shards = [pb.SourceShard(**asdict(shard)) for shard in records.shards]
        work = partial(fit, columns, records.read, session)
        columns.load_bytes(session.fit_preprocessing(columns.spec, shards, work))
    saver.preprocessing = columns.to_bytes()


class _Records:
    """The records of tasks, in the form of a ``collate_fn``'s argument: tables or lists for data
    files, lists of samples for a dataset.

    Args:
        data: paths of data files, or a dataset with ``__len__`` and ``__getitem__``.

    Raises:
        UsageError: ``data`` has another type, or no records.
    """

    def __init__(self, data: Any) -> None:
        self._dataset: Any = None
        self._sources: dict[str, Source] = {}
        if is_paths(data):
            self._sources = {source.name: source for source in open_sources(data)}
            # The copy of a file on another machine may have another time of modification.
            found = [replace(Shard.of(each), mtime_ns=0) for each in self._sources.values()]
            self.shards = [shard for shard in found if shard.records]
        elif isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
            raise UsageError(
                f"job.fit(): the records of {type(data).__name__} cannot be cut into tasks; give "
                "data files or a dataset with __getitem__, or fit in each process with "
                "columns.fit(records)"
            )
        else:
            self._dataset = as_rows(data)
            self.shards = [Shard(_DATASET, len(data))] if len(data) else []
        if not self.shards:
            raise UsageError("job.fit(): there are no records")

    def read(self, task: Task | HeldLease) -> Any:
        """Return the records of a task."""
        if self._dataset is not None:
            return samples(self._dataset, list(range(task.start, task.end)))
        return self._sources[task.shard].read(task.start, task.end)

    def __iter__(self) -> Iterator[Any]:
        """Yield all records, in parts of at most ``_RECORDS`` records."""
        space = TaskSpace(self.shards, _RECORDS)
        return (self.read(space.task(number)) for number in range(space.total))
