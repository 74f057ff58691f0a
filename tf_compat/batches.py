"""The minibatches of one member of a ring, made in the training process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch_edl.data.feeder import FeedError
from torch_edl.data.passes import Pass, Span
from torch_edl.data.randomness import is_same_order, order_of
from torch_edl.data.sources import Records
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import TaskSpace
from torch_edl.interfaces import Batch

_AHEAD = 16  # number of minibatches that are made at once


class TaskBatches:
    """The minibatches of one member of a ring.

    Several minibatches are made at once if ``make`` returns one sample for each record. The cost of
    each call, such as building a graph, exceeds the cost of each record.

    Args:
        records: records of the training tasks.
        data: partition of the records into updates.
        space: the training tasks.
        make: returns the minibatch of some records; raises FeedError.
        cut: returns a range of samples of a minibatch.
    """

    def __init__(
        self,
        records: TaskRecords,
        data: Pass,
        space: TaskSpace,
        make: Callable[[Records], Batch],
        cut: Callable[[Batch, int, int], Batch],
    ) -> None:
        self._records = records
        self._data = data
        self._space = space
        self._make = make
        self._cut = cut
        self._ahead: dict[Span, Batch] = {}
        self._place = (0, 0)
        self._is_by_record: bool | None = None  # None: unknown yet

    def take(self, span: Span, start: int, rank: int, world: int) -> Batch:
        """Return the minibatch at ``span``, which belongs to the update at ``start``."""
        if self._place != (rank, world) or span not in self._ahead:
            self._place = (rank, world)
            spans = self._data.spans(start, span, rank, world)
            self._ahead = self._made(list(itertools.islice(spans, _AHEAD)))
        found = self._ahead.pop(span, None)
        return self.sample(span) if found is None else found

    def sample(self, span: Span) -> Batch:
        """Return the minibatch at ``span``, made alone."""
        return self._make(self._read([span]))

    def close(self) -> None:
        """Discard the minibatches made in advance."""
        self._ahead.clear()

    def _read(self, spans: Sequence[Span]) -> Records:
        pieces = [piece for span in spans for piece in self._space.pieces(span)]
        return self._records.__getitems__(pieces)

    def _made(self, spans: Sequence[Span]) -> dict[Span, Batch]:
        """Return the minibatches at some spans; empty if they cannot be made at once."""
        ends = list(itertools.accumulate((last - first for first, last in spans), initial=0))
        if self._is_by_record is False:
            return {}
        try:
            whole = self._make(self._read(spans))
        except FeedError:
            return {}  # raised again when the failing minibatch is made alone
        if whole.size != ends[-1] or whole.damaged:
            return {}  # samples cannot be matched to records
        cuts = zip(spans, itertools.pairwise(ends), strict=True)
        made = {span: self._cut(whole, first, last) for span, (first, last) in cuts}
        if self._is_by_record is None:
            # A `make` that sorts or shuffles moves records between minibatches. If the ring changed
            # then, some records would be trained twice and others never.
            self._is_by_record = all(map(self._is_alone, made, made.values()))
        return made if self._is_by_record else {}

    def _is_alone(self, span: Span, batch: Batch) -> bool:
        """Return True if a minibatch has the same records in the same order when made alone."""
        try:
            alone = self.sample(span)
        except FeedError:
            return False
        return is_same_order(
            order_of(alone.features, alone.labels), order_of(batch.features, batch.labels)
        )
