"""A ``dataset_fn`` that shuffles, as those of ElasticDL do, gives each attempt the same records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tf_compat.installed import tf
from tf_compat.datasets import TensorFlowDatasets, of_dataset
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.batch import Update
from torch_edl.data.feeder import Feeder
from torch_edl.data.randomness import is_same_order
from torch_edl.data.sources import IndexedSource
from torch_edl.master_client.leases import Lease

RECORDS = [str(number).encode() for number in range(60)]


def _number(record: Any) -> Any:
    number = tf.strings.to_number(record, tf.int64)
    return number, number


def shuffled_dataset(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(_number).shuffle(30)


def shuffled_tensor(records: Any, mode: str, metadata: Any) -> Any:
    numbers = tf.random.shuffle(tf.constant([int(record) for record in records], tf.int64))
    return numbers, numbers


def lease(task: int) -> Lease:
    return Lease(lease_id=1, task_id=task, shard="s", end=60, shard_records=60)


def values(update: Update) -> list[int]:
    return [int(n) for each in update.minibatches for n in np.asarray(each.batch.features)]


@pytest.mark.parametrize("feed", [of_dataset(shuffled_dataset), shuffled_tensor])
def test_a_shuffle_is_the_same_in_each_attempt(feed: Any) -> None:
    job = JobConfig(name="t", model_file="m.py", data=DataConfig(batch_size=8))
    first, again = (
        Feeder(job, feed, TensorFlowDatasets(8), {"s": IndexedSource(RECORDS, name="s")})
        for _ in range(2)
    )
    tf.random.set_seed(1)
    whole = list(first.prepare(lease(5))(0))
    tf.random.set_seed(2)
    again.prepare(lease(6))
    rest = list(again.prepare(lease(5))(24))
    assert [values(update) for update in rest] == [values(update) for update in whole[3:]]
    assert sorted(n for update in whole for n in values(update)) == list(range(60))
    known, begun = whole[0].first_records, rest[0].first_records
    assert known == begun
    other = next(again.prepare(lease(6))(0)).first_records
    assert known is not None
    assert other is not None
    assert not is_same_order(known.order, other.order)
