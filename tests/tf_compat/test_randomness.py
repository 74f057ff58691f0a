"""A ``dataset_fn`` that shuffles, as those of ElasticDL do, gives each attempt the same records."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.tf_compat.installed import keras, tf
from tf_compat.contract import KerasContract
from tf_compat.datasets import TensorFlowDatasets, of_dataset
from tf_compat.step import KerasStep
from tf_compat.trained import TrainedModel
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.feeder import Feeder
from torch_edl.data.randomness import is_same_order
from torch_edl.data.sources import IndexedSource
from torch_edl.interfaces import Batch, Update
from torch_edl.master_client.leases import HeldLease
from torch_edl.training.contract.argument_order import labels_first

RECORDS = [str(number).encode() for number in range(60)]


def _number(record: Any) -> Any:
    number = tf.strings.to_number(record, tf.int64)
    return number, number


def shuffled_dataset(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(_number).shuffle(30)


def shuffled_tensor(records: Any, mode: str, metadata: Any) -> Any:
    numbers = tf.random.shuffle(tf.constant([int(record) for record in records], tf.int64))
    return numbers, numbers


def lease(task: int) -> HeldLease:
    return HeldLease(lease_id=1, task_id=task, shard="s", end=60, shard_records=60)


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


def train_beside(feeder: Feeder, stop: threading.Event) -> threading.Thread:
    """A thread that trains a model which draws from the generator of TensorFlow."""

    class Noisy(keras.Model):
        def call(self, features: Any) -> Any:
            return features + tf.random.normal(tf.shape(features))

    contract = KerasContract(
        path="m.py", model=Noisy, loss=labels_first(lambda labels, p: tf.reduce_sum(p)),
        optimizer=keras.optimizers.SGD, feed=lambda *_: None,
    )  # fmt: skip
    trained = TrainedModel(Noisy(), keras.optimizers.SGD())
    apart = feeder.generators.apart
    step = KerasStep(contract, trained, on_nan="stop", compiled=False, apart=apart)

    def train() -> None:
        while not stop.is_set():
            with apart():
                step.loss(Batch(tf.zeros(4), tf.zeros(4), 4))

    thread = threading.Thread(target=train)
    thread.start()
    return thread


def test_what_training_draws_does_not_move_a_shuffle() -> None:
    """Operations of one process take their seeds in turn, of whatever thread they are."""
    job = JobConfig(name="t", model_file="m.py", data=DataConfig(batch_size=8))
    sources = {"s": IndexedSource(RECORDS, name="s")}
    feeder = Feeder(job, of_dataset(shuffled_dataset), TensorFlowDatasets(8), sources)

    def order() -> list[int]:
        return [n for update in feeder.prepare(lease(5))(0) for n in values(update)]

    stop, alone = threading.Event(), order()
    training = train_beside(feeder, stop)
    try:
        assert [order() for _ in range(20)] == [alone] * 20
    finally:
        stop.set()
        training.join()


def test_records_that_are_read_in_parallel_keep_their_order() -> None:
    def dataset_fn(dataset: Any, mode: str, metadata: Any) -> Any:
        unordered = tf.data.Options()
        unordered.deterministic = False
        return dataset.map(_number, num_parallel_calls=8).with_options(unordered)

    job = JobConfig(name="t", model_file="m.py", data=DataConfig(batch_size=8, shuffle=False))
    sources = {"s": IndexedSource(RECORDS, name="s")}
    feeder = Feeder(job, of_dataset(dataset_fn), TensorFlowDatasets(8), sources)
    for _ in range(20):
        found = [n for update in feeder.prepare(lease(5))(0) for n in values(update)]
        assert found == list(range(60))
