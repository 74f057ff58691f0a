"""A Keras model in a ring: each member has a copy, and the gradients are summed as one flat array
after the backward pass. A member makes its minibatches in the training process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_compat.collectives.stream_group import StreamGroup
from tf_compat.collectives.stream_listener import StreamListener
from tf_compat.replica import KerasReplica
from tf_compat.trained import TrainedModel, dense
from torch_edl.data.feeder import FeedError
from torch_edl.data.passes import Pass, Span
from torch_edl.data.randomness import is_same_order, order_of
from torch_edl.data.sources import Records
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import TaskSpace
from torch_edl.engine.ring.replicated import GradientReducer, Phase, Receive, RingBrokenError, Send
from torch_edl.interfaces import Batch

Array = npt.NDArray[Any]

_AHEAD = 16  # number of minibatches that are made at once


class KerasReducer(GradientReducer):
    """Implements :class:`~torch_edl.engine.ring.replicated.GradientReducer`.

    Gradients are sent in float32, or in float64 if a variable has this type. Slices, such as those
    of a ``keras.layers.Embedding``, are converted to dense gradients. The array ends with a flag
    per gradient that says if the member has it, two sums of shares, the control numbers, and the
    statistics of normalizations. All members take the statistics of one member, as in a ring of
    torch.
    """

    def __init__(self, trained: TrainedModel, controls: int, send: Send, receive: Receive) -> None:
        super().__init__(send, receive)
        self._trained = trained
        self._group: StreamGroup | None
        self._places = trained.trained
        self._buffers = [place.variable for place in trained.places if place.is_buffer]
        self._measured = [each for each in self._buffers if _is_float(each)]
        self._saved: list[Array] = []
        variables = [place.variable for place in self._places]
        self._dtype = np.dtype("f8" if any(v.dtype == "float64" for v in variables) else "f4")
        self._spans = _spans(variables)
        gradients = self._spans[-1].stop if self._spans else 0
        self._told_span = slice(gradients, gradients + len(variables) + 2 + controls)
        self._statistics = [
            slice(span.start + self._told_span.stop, span.stop + self._told_span.stop)
            for span in _spans(self._measured)
        ]
        end = self._statistics[-1].stop if self._statistics else self._told_span.stop
        self._flat: Array = np.zeros(end, self._dtype)
        self._has: set[int] = set()
        """Numbers of the variables whose gradients are in the array."""
        trained.on_gradients(self._finish_backward)

    def clear_gradients(self) -> None:
        self._trained.gradients = {}

    def _save_buffers(self) -> None:
        self._saved = [np.asarray(variable).copy() for variable in self._buffers]

    def _restore_buffers(self) -> None:
        for variable, value in zip(self._buffers, self._saved, strict=True):
            variable.assign(value)

    def _reset(self) -> None:
        super()._reset()
        self._has.clear()

    def _finish_backward(self) -> None:
        if self.phase is Phase.LOCAL:  # the optimizer receives the same types as in a ring
            given = self._trained.gradients
            self._trained.gradients = {name: dense(each) for name, each in given.items()}
        if self.phase not in (Phase.ACCUMULATE, Phase.REDUCE):
            return
        self._add()
        if self.phase is Phase.ACCUMULATE:
            self._share_before += self._share
            self.phase = Phase.ACCUMULATED
            return
        self._reduce()
        if self.phase is Phase.REDUCE:
            self.phase = Phase.REDUCED

    def _add(self) -> None:
        """Add the current gradients, weighted by their share, to the array."""
        if not self._share:
            return  # 0 times a value that is not finite would be NaN
        for number, place in enumerate(self._places):
            gradient = self._trained.gradients.get(place.name)
            if gradient is None:
                continue
            value = np.asarray(dense(gradient)).reshape(-1)
            part = self._flat[self._spans[number]]
            if number in self._has:
                part += value.astype(self._dtype) * self._share
            else:
                np.multiply(value, self._share, out=part, dtype=self._dtype, casting="unsafe")
                self._has.add(number)

    def _reduce(self) -> None:
        """Sum the array over all members, and set the gradients for the optimizer."""
        flat, told = self._flat, self._flat[self._told_span]
        members = has = [float(number in self._has) for number in range(len(self._places))]
        if self._group is None:
            self.covered = self._share_before + self._share
        else:
            for span, given in zip(self._spans, has, strict=True):
                if not given:
                    flat[span] = 0
            told[:] = self._told(has)
            for variable, span in zip(self._measured, self._statistics, strict=True):
                flat[span] = np.asarray(variable).reshape(-1) if self._leads else 0
            try:
                self._group.allreduce(flat)
            except RingBrokenError as error:
                self.fail(str(error))
                return
            if (heard := self._heard(told.tolist(), len(has))) is None:
                return
            members = heard
            for variable, span in zip(self._measured, self._statistics, strict=True):
                variable.assign(flat[span].reshape(variable.shape))
        self._trained.gradients = {
            place.name: tf.cast(flat[span].reshape(place.variable.shape), place.variable.dtype)
            for place, span, n in zip(self._places, self._spans, members, strict=True)
            if n
        }


def _spans(variables: list[Any]) -> list[slice]:
    """Return the consecutive parts of a flat array that belong to the variables."""
    spans, start = [], 0
    for variable in variables:
        end = start + int(np.prod(variable.shape, dtype=np.int64))
        spans.append(slice(start, end))
        start = end
    return spans


def _is_float(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


class ReplicatedKerasModel:
    """Implements :class:`~torch_edl.engine.ring.replicated.Replicated`.

    Args:
        meeting: endpoint at which other members reach this process.
    """

    def __init__(
        self, trained: TrainedModel, replica: KerasReplica, meeting: StreamListener
    ) -> None:
        self.replica = replica
        self._trained = trained
        self._meeting = meeting

    def reducer(self, controls: int, send: Send, receive: Receive) -> KerasReducer:
        return KerasReducer(self._trained, controls, send, receive)

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        trained = self._trained
        return trained.before_step(lambda: before_step(trained.optimizer))

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> StreamGroup:
        return StreamGroup(self._meeting, store, ring, rank, size, meet_s=meet_s)


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

    def sample(self, *spans: Span) -> Batch:
        """Return one minibatch of the records at all ``spans``, not made in advance."""
        return self._make(self._read(spans))

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
