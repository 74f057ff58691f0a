"""What ``feed`` may return besides tensors, in TensorFlow: a ``tf.data.Dataset`` of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from torch_edl.data.batch import Damaged, SampleError

Feed = Callable[[Any, str, Any], Any]


class TensorFlowDatasets:
    """See :class:`~torch_edl.data.feeder.Datasets`. A sample of a ``tf.data.Dataset`` that raises
    ends the dataset, so none is left out."""

    name = "a tf.data.Dataset"

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def is_dataset(self, fed: Any) -> bool:
        return isinstance(fed, tf.data.Dataset)

    def size(self, dataset: Any) -> int:
        return sum(1 for _ in dataset)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return tf.convert_to_tensor(array)

    def minibatches(
        self, dataset: Any, skip: int, *, tolerant: bool
    ) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        return self._read(dataset.skip(skip * self._batch_size).batch(self._batch_size))

    def collated(self, dataset: Any, *, tolerant: bool) -> tuple[Any, Sequence[Damaged]]:
        return next(self._read(dataset.batch(max(1, self.size(dataset)))))

    def _read(self, batches: Any) -> Iterator[tuple[Any, Sequence[Damaged]]]:
        try:
            for batch in batches:
                yield batch, ()
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise SampleError(error, None) from error


def of_dataset(dataset_fn: Feed) -> Feed:
    """A ``feed`` of a ``dataset_fn``, which is given the records as a ``tf.data.Dataset``: of
    strings of bytes, or of dicts of the columns of a table."""

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
