"""Supports a ``feed`` that returns a ``tf.data.Dataset`` of samples instead of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from tensorflow.python.eager import context

from torch_edl.data.batch import SampleError
from torch_edl.data.cuts import minibatch_cuts
from torch_edl.data.randomness import Generator, TaskRandom
from torch_edl.interfaces import Damaged

Feed = Callable[[Any, str, Any], Any]


def _state() -> Any:
    # TensorFlow has no public way to read the state of the seeds of operations. Layers of Keras
    # have their own generators.
    eager = context.context()
    # The generator does not exist before the first seed.
    return None if eager._seed is None else (eager._seed, eager._rng.getstate())


def _restore(state: Any) -> None:
    eager = context.context()
    eager._seed = None
    if state is not None:
        eager._seed = state[0]
        eager._rng.setstate(state[1])


class TensorFlowDatasets:
    """Implements :class:`~torch_edl.data.batch.Datasets`.

    A sample of a ``tf.data.Dataset`` that raises ends the dataset, so samples cannot be skipped.
    """

    name = "a tf.data.Dataset"
    framework = "tensorflow"
    generator = Generator(seed=tf.random.set_seed, state=_state, restore=_restore)

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def is_dataset(self, fed: Any) -> bool:
        return isinstance(fed, tf.data.Dataset)

    def size(self, dataset: Any) -> int:
        return sum(1 for _ in dataset)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return tf.convert_to_tensor(array)

    def minibatches(
        self, dataset: Any, records: int, skip: int, random: TaskRandom, *, tolerant: bool
    ) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        in_order = tf.data.Options()
        in_order.deterministic = True
        # Read in one pass: a dataset that shuffles has another order when it is read again.
        size = minibatch_cuts(records, self._batch_size)[1]
        read = self._read(dataset.with_options(in_order).batch(size))
        for number, item in enumerate(read):
            if number == 0 or number >= skip:
                yield item

    def collated(self, dataset: Any, *, tolerant: bool) -> tuple[Any, Sequence[Damaged]]:
        return next(self._read(dataset.batch(max(1, self.size(dataset)))))

    def _read(self, batches: Any) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        try:
            for batch in batches:
                yield batch, ()
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise SampleError(error, None) from error


def of_dataset(dataset_fn: Feed) -> Feed:
    """Return a ``feed`` that passes the records to ``dataset_fn`` as a ``tf.data.Dataset``.

    The elements of the dataset are byte strings, or dicts of the columns of a table.
    """

    def feed(records: Any, mode: str, metadata: Any) -> Any:
        return dataset_fn(_dataset(records), mode, metadata)

    return feed


def _dataset(records: Any) -> Any:
    if isinstance(records, pa.Table):
        columns = {name: _column(records.column(name)) for name in records.column_names}
        return tf.data.Dataset.from_tensor_slices(columns)
    return tf.data.Dataset.from_tensor_slices(tf.constant(records, tf.string))


def _column(column: pa.ChunkedArray) -> Any:
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return tf.ragged.constant(column.to_pylist())
    return tf.convert_to_tensor(column.to_numpy())
