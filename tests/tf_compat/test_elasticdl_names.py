"""A model file with the names of ElasticDL, and what is said where one has no place here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torch_edl
from tests.tf_compat.installed import tf
from tests.waiting import COMMAND_S
from tf_compat.contract import load_contract
from tf_compat.datasets import TensorFlowDatasets
from torch_edl.config import DataConfig, JobConfig
from torch_edl.data.feeder import Feeder, FeedError
from torch_edl.data.sources import IndexedSource
from torch_edl.errors import ContractError
from torch_edl.master_client.leases import HeldLease
from torch_edl.wire import master_pb2 as pb

FILE = """
import tensorflow as tf
from torch_edl import Mode

class CustomModel(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
        self(tf.zeros((1, 1)))

    def call(self, inputs, training=False):
        return self.dense(inputs)

def loss(labels, predictions):
    return tf.reduce_mean((labels - predictions) ** 2)

def optimizer(lr=0.1):
    return tf.keras.optimizers.SGD(lr)

def feed(dataset, mode, _):
    def parse(record):
        number = tf.reshape(tf.strings.to_number(record), (1,))
        return number if mode == Mode.PREDICTION else (number, 2 * number)
    dataset = dataset.map(parse)
    return dataset.shuffle(1024) if mode == Mode.TRAINING else dataset
"""
LEASE = HeldLease(lease_id=1, task_id=0, shard="s", end=8, shard_records=8)


def write(folder: Path, text: str) -> str:
    path = folder / "m.py"
    path.write_text(text)
    return str(path)


def feeder(path: str) -> Feeder:
    contract = load_contract(path)
    job = JobConfig(name="t", model_file=path, data=DataConfig(batch_size=4))
    sources = {"s": IndexedSource([b"%d" % n for n in range(8)], name="s")}
    return Feeder(job, contract.feed, TensorFlowDatasets(4), sources, name=contract.named("feed"))


def test_a_feed_of_a_dataset_and_a_custom_model(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    assert load_contract(path).make_model().count_params() == 2
    batches = [b.batch for each in feeder(path).prepare(LEASE)(0) for b in each.minibatches]
    numbers = np.concatenate([np.ravel(batch.features) for batch in batches]).tolist()
    assert sorted(numbers) == list(range(8))
    assert numbers != list(range(8))
    (update, _) = feeder(path).prepare(replace(LEASE, kind=pb.TASK_PREDICT))(0)
    assert update.minibatches[0].batch.labels is None


def test_the_modes_are_their_texts() -> None:
    assert [torch_edl.Mode.TRAINING, torch_edl.Mode.EVALUATION, torch_edl.Mode.PREDICTION] == [
        "training", "evaluation", "prediction",
    ]  # fmt: skip
    assert json.dumps({"mode": torch_edl.Mode.TRAINING}) == '{"mode": "training"}'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("        self(tf.zeros((1, 1)))\n", "",
         r"CustomModel\(\) returned a model without [^\n]*\n.*\n +net = CustomModel\(\)\n"),
        ("class CustomModel", "class Net", "no function 'model' .*'custom_model', 'CustomModel'"),
        ("from torch_edl import", "from elasticdl.python.common.constants import",
         r"No module named 'elasticdl'; .*\(from torch_edl import Mode\)"),
        ("feed(dataset, mode, _)", "dataset_fn(dataset, mode)",
         r"dataset_fn\(dataset, mode\) does not take 3 arguments"),
    ],
)  # fmt: skip
def test_what_is_said_names_what_the_file_has(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FILE
    path = write(tmp_path, FILE.replace(old, new))
    with pytest.raises(ContractError, match=message):
        load_contract(path).make_model()


def test_an_error_names_the_dataset_fn(tmp_path: Path) -> None:
    text = FILE.replace("def feed(", "def dataset_fn(").replace(
        "dataset.map(parse)", "dataset.no()"
    )
    with pytest.raises(FeedError, match=r"^dataset_fn raised AttributeError"):
        feeder(write(tmp_path, text)).prepare(LEASE)


@pytest.mark.slow
def test_a_job_of_such_a_file(tmp_path: Path) -> None:
    data, output = tmp_path / "numbers.tfrecord", tmp_path / "summary.json"
    with tf.io.TFRecordWriter(str(data)) as file:
        for number in range(640):
            file.write(b"%d" % (number % 2))
    words = ["run", write(tmp_path, FILE), "--data", str(data)]
    command = [sys.executable, "-m", "torch_edl.cli", *words, "--summary", str(output)]
    subprocess.run(command, check=True, timeout=COMMAND_S)
    assert json.loads(output.read_text())["records"] == 640
