"""What becomes of a Keras model in an engine: tables, buffers, checkpoints, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tf_compat.installed import keras, tf
from tests.unit.engine.conftest import TOKEN, start_servers
from tf_compat.contract import KerasContract, load_contract
from tf_compat.embedding import swap_large
from tf_compat.export import export
from tf_compat.replica import KerasReplica
from tf_compat.servers import ServedKerasModel
from tf_compat.step import KerasStep, body
from tf_compat.trained import TrainedModel
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.export import write_output
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig, TrainConfig
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.errors import (
    CheckpointError,
    ContractError,
    NanLossError,
    UsageError,
    UserCodeError,
)
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.training.contract.argument_order import labels_first
from torch_edl.wire import master_pb2 as pb

__all__ = ["start_servers"]

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH = 8
L = keras.layers
Start = Callable[..., list[pb.Server]]


def contract(loss: Callable[..., Any]) -> KerasContract:
    return KerasContract(
        path="m.py", model=keras.Model, loss=labels_first(loss), optimizer=keras.optimizers.SGD,
        feed=lambda *_: None,
    )  # fmt: skip


class Job:
    """A model, its body, and an engine: on servers, or in this process without any."""

    def __init__(
        self, model: Any, optimizer: Any, loss: Callable[..., Any], servers: list[pb.Server],
        *, compiled: bool = False, on_nan: str = "stop", restored_from: Path | None = None,
        log_layers: str = "",
    ) -> None:  # fmt: skip
        self.trained = TrainedModel(model, optimizer)
        step = KerasStep(
            contract(loss), self.trained, on_nan=on_nan, compiled=compiled, log_layers=log_layers
        )
        self.predict = step.predict
        status = WorkerStatus()
        config = JobConfig(name="t", model_file="m.py", train=TrainConfig(staleness=0))
        self.engine: Any
        if servers:
            served = ServedKerasModel(self.trained, step.call)
            self.engine = ServersEngine(served, config=config, token=TOKEN, status=status)
        else:
            self.engine = LocalEngine(KerasReplica(self.trained, 3), status=status)
        where = str(restored_from or "")
        self.engine.connect(pb.Cluster(incarnation=1, servers=servers, restored_from=where))
        self.body = body(step, self.engine, self.trained)
        self.number = 0

    def train(self, *batches: tuple[Any, Any]) -> list[float]:
        """Each batch as an update of a task without end."""
        losses = []
        for features, labels in batches:
            first, self.number = self.number * BATCH, self.number + 1
            minibatch = Minibatch(0, first, BATCH, Batch(features, labels, BATCH))
            lease = HeldLease(lease_id=1, task_id=0, end=1000, incarnation=1)
            one = Update(first, first + BATCH, [minibatch], 1, BATCH, lease)
            losses.append(self.body(self.engine.begin(one, minibatch)))
            assert self.engine.commit(one)
        self.engine.acknowledged(wait=True)
        return losses

    def rows(self, table: str, dim: int, ids: range) -> Any:
        client = self.engine.settled()
        wanted = PartitionedIds.of(np.array(ids), client.servers)
        tables = [TableIds(table, dim, wanted)]
        return client.pull(tables, dense=False, read_only=True).wait().rows[0][wanted.inverse]


def test_a_trained_embedding_of_keras_is_no_table_unless_its_rows_are_loaded() -> None:
    ids = keras.Input((3,), dtype="int64")
    layer = L.Embedding(500, 4, name="trained")
    model = keras.Model(ids, layer(ids))
    layer.embeddings.assign(np.linspace(0, 1, 2000, dtype=np.float32).reshape(500, 4))
    with pytest.raises(UsageError, match=r"embedding trained \(500 x 4\): .* not random"):
        swap_large(model, 20)
    assert swap_large(model, 20, restored=True) == ["trained"]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_large_embedding_of_keras_becomes_a_table(compiled: bool, start_servers: Start) -> None:
    """In its place in a functional model, which is called twice with it."""
    first, second = keras.Input((3,), dtype="int64"), keras.Input((2,), dtype="int64")
    large = L.Embedding(50, 2, embeddings_initializer="zeros", name="large")
    small = L.Embedding(3, 2, embeddings_initializer="zeros", name="small")
    rows = keras.ops.concatenate([large(first), large(second), small(second % 3)], 1)
    model = keras.Model([first, second], rows)
    assert swap_large(model, 20) == ["large"]
    job = Job(
        model, keras.optimizers.SGD(1.0), lambda labels, p: -tf.reduce_sum(p), start_servers(2),
        compiled=compiled,
    )  # fmt: skip
    random = np.random.default_rng(0)
    counts, batches = np.zeros(50), []
    for _ in range(4):
        fed = random.integers(0, 50, (BATCH, 3)), random.integers(0, 50, (BATCH, 2))
        counts += sum(np.bincount(ids.ravel(), minlength=50) for ids in fed)
        batches.append((tuple(map(tf.constant, fed)), None))
    job.train(*batches)
    np.testing.assert_array_equal(job.rows("large", 2, range(50)), np.repeat(counts[:, None], 2, 1))
    assert [place.name for place in job.trained.places] == ["small.weight"]
    with job.engine.evaluating() as prepare:
        seen = model(prepare(batches[0][0]))
    assert float(seen[0, 0, 0]) == counts[int(batches[0][0][0][0, 0])]
    job.engine.close()


def test_what_a_layer_assigns_reaches_the_servers(start_servers: Start) -> None:
    class Counted(L.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.seen = self.add_weight(
                shape=(), dtype="int64", initializer="zeros", trainable=False, name="seen"
            )

        def call(self, inputs: Any) -> Any:
            self.seen.assign_add(1)
            return inputs

    def build() -> Any:
        layers = [keras.Input((3,)), Counted(name="count"), L.BatchNormalization(name="norm")]
        return keras.Sequential([*layers, L.Dense(1, name="out")])

    servers = start_servers(2)

    def loss(labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean((labels - predictions) ** 2)

    one = Job(build(), keras.optimizers.SGD(0.1), loss, servers)
    random = np.random.default_rng(0)
    batches = [
        (tf.constant(random.normal(2, 1, (BATCH, 3)), tf.float32), tf.ones((BATCH, 1)))
        for _ in range(5)
    ]
    one.train(*batches)
    two = Job(build(), keras.optimizers.SGD(0.1), loss, servers)  # a worker that comes later
    with one.engine.evaluating(), two.engine.evaluating():
        mine = {place.name: place.value for place in one.trained.places}
        theirs = {place.name: place.value for place in two.trained.places}
    assert {n: v.tolist() for n, v in mine.items()} == {n: v.tolist() for n, v in theirs.items()}
    assert mine["count.seen"] == 5
    assert mine["norm.running_mean"].min() > 0.01
    one.engine.close()
    two.engine.close()


@pytest.fixture
def deepfm(monkeypatch: pytest.MonkeyPatch) -> KerasContract:
    monkeypatch.setattr("sys.argv", ["model"])
    return load_contract(str(EXAMPLES / "deepfm" / "model_tf.py"))


def clicks(count: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    return [
        (
            (
                tf.constant(random.integers(-5, 300, (BATCH, 26))),
                tf.constant(random.normal(size=(BATCH, 13)), tf.float32),
            ),
            tf.constant(random.integers(0, 2, BATCH), tf.float32),
        )
        for _ in range(count)
    ]


def local(made: KerasContract, restored_from: Path | None = None) -> Job:
    keras.utils.set_random_seed(3)
    optimizer = keras.optimizers.Adam(0.01)
    return Job(made.make_model(), optimizer, made.loss, [], restored_from=restored_from)


def saved(job: Job, folder: Path) -> Path:
    snapshot = job.engine.snapshot()(folder)
    about = Manifest(
        job="t", strategy="local", steps=snapshot.version, files=snapshot.files,
        watermarks=snapshot.watermarks,
    )  # fmt: skip
    layout.seal(folder, about)
    return folder


def test_a_local_job_goes_on_from_its_checkpoint_bit_by_bit(
    deepfm: KerasContract, tmp_path: Path
) -> None:
    data = clicks(8)
    whole = local(deepfm)
    losses = whole.train(*data)
    first = local(deepfm)
    assert first.train(*data[:4]) == losses[:4]
    folder = saved(first, tmp_path / "checkpoint")
    second = local(deepfm, restored_from=folder)
    second.number = 4
    assert second.engine.committed(HeldLease(lease_id=1, task_id=0, end=1000)) == 4 * BATCH
    assert second.train(*data[4:]) == losses[4:]
    with pytest.raises(CheckpointError, match="the state of Adam, and this model file has SGD"):
        Job(deepfm.make_model(), keras.optimizers.SGD(0.1), deepfm.loss, [], restored_from=folder)


def test_an_export_has_the_rows_of_its_tables(deepfm: KerasContract, tmp_path: Path) -> None:
    data = clicks(3)
    job = local(deepfm)
    job.train(*data)
    checkpoint = saved(job, tmp_path / "checkpoint")
    write_output(checkpoint, tmp_path / "output")
    for source in (checkpoint, tmp_path / "output"):
        target = tmp_path / f"served-{source.name}"
        said = export(source, str(EXAMPLES / "deepfm" / "model_tf.py"), target)
        assert "tables; factors, weights: rows of zeros for ids that training has not seen" in said
        served = tf.saved_model.load(str(target))
        with job.engine.evaluating() as prepare:
            wanted = job.trained.model(prepare(data[0][0]), training=False)
        np.testing.assert_allclose(served.serve(data[0][0]), wanted, rtol=1e-5, atol=1e-6)
        ids, dense = data[0][0]
        unseen = served.serve((tf.fill(ids.shape, tf.constant(1 << 60, tf.int64)), dense))
        assert np.isfinite(unseen).all()


BOUNDED = """
import keras
import tensorflow as tf
import tf_compat

def forward():
    ids = keras.Input((2,), dtype="int64")
    rows = tf_compat.Embedding(20, 3, initializer="normal", name="rows")(ids)
    return keras.Model(ids, keras.layers.Dense(1, name="out")(rows))

def loss(labels, predictions):
    return tf.reduce_mean(predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(records, mode, metadata):
    return records
"""


@pytest.mark.parametrize("name", ["net.keras", "served"])
def test_an_export_has_all_rows_of_a_table_with_a_bound(tmp_path: Path, name: str) -> None:
    file = tmp_path / "bounded.py"
    file.write_text(BOUNDED)
    job = local(load_contract(str(file)))
    seen = tf.reshape(tf.range(2 * BATCH, dtype=tf.int64) % 10, (BATCH, 2))
    job.train((seen, tf.zeros(BATCH)))
    checkpoint = saved(job, tmp_path / "checkpoint")
    export(checkpoint, str(file), tmp_path / name)
    every = tf.reshape(tf.range(20, dtype=tf.int64), (10, 2))
    with job.engine.evaluating() as prepare:
        wanted = job.trained.model(prepare(every), training=False)
    assert len(np.unique(np.asarray(wanted))) == 20
    if name == "served":
        served = tf.saved_model.load(str(tmp_path / name))
        found = served.serve(every)
    else:
        found = keras.models.load_model(tmp_path / name)(every)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


NET = """
import keras
import tensorflow as tf

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, inputs):
        return self.out(inputs)

def forward():
    return Net()

def loss(labels, predictions):
    return tf.reduce_mean(predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(records, mode, metadata):
    return records
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", r"returned a model without variables, (?s:.)* net\(tf.zeros\("),
        ("return Net()", "return 3", r"forward returned int, expected a keras.Model; for example"),
        ("optimizer():", "optimizer(params):", r"optimizer\(params\) does not take 0 arguments"),
        ("def loss", "def lost", r"no function 'loss': add for example:\n .*tf.reduce_mean"),
    ],
)
def test_a_file_that_breaks_the_contract(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(NET.replace(old, new) if old else NET)
    with pytest.raises(ContractError, match=message):
        load_contract(str(path)).make_model()


def linear(loss: Callable[..., Any], **how: Any) -> Job:
    net = keras.Sequential([keras.Input((2,)), L.Dense(1, kernel_regularizer="l2")])
    return Job(net, keras.optimizers.SGD(0.1), loss, [], **how)


def test_losses_that_are_no_finite_scalars() -> None:
    good, bad = tf.ones((BATCH, 2)), tf.constant([[1.0, float("nan")]] * BATCH)
    vector = linear(lambda labels, predictions: predictions)
    with pytest.raises(UserCodeError, match=r"loss returned \(8, 1\) float32; expected a scalar"):
        vector.train((good, good))
    with pytest.raises(
        UserCodeError, match=r"(?s)the model raised .* \(features \(8, 3\) float32\)"
    ):
        vector.train((tf.ones((BATCH, 3)), good))
    stops = linear(lambda labels, predictions: tf.reduce_mean(predictions))
    with pytest.raises(NanLossError, match=r"the input features\[0, 1\] is nan .* 8 of 8"):
        stops.train((bad, good))
    skips = linear(lambda labels, predictions: tf.reduce_mean(predictions), on_nan="skip")
    before = [place.value.copy() for place in skips.trained.places]
    assert np.isnan(skips.train((bad, good))).all()
    for value, place in zip(before, skips.trained.places, strict=True):
        np.testing.assert_array_equal(value, place.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_of_layers_are_logged_in_training(
    caplog: pytest.LogCaptureFixture, compiled: bool
) -> None:
    def loss(labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean(predictions)

    caplog.set_level("INFO", "torch_edl.layers")
    job = linear(loss, compiled=compiled, log_layers="0")
    inputs = tf.ones((BATCH, 2))
    job.predict(inputs)
    batch = (inputs, inputs)
    job.train(*[batch] * 51)
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("step 1 0 (8, 1): mean ")
    assert last.startswith("step 51 0 (8, 1): mean ")
    assert " std 0 " in last
    caplog.clear()
    linear(loss, log_layers="deep.*")
    assert "--log-layers deep.*: no module matches; there are 0" in caplog.text


def test_the_penalties_of_a_model_are_in_its_loss() -> None:
    job = linear(lambda labels, predictions: 0.0 * tf.reduce_sum(predictions))
    weight = next(place for place in job.trained.places if place.name == "0.weight")
    before = weight.value.copy()
    (loss,) = job.train((tf.ones((BATCH, 2)), None))
    assert loss == pytest.approx(0.01 * float((before**2).sum()), rel=1e-5)
    np.testing.assert_allclose(weight.value, before * (1 - 0.1 * 0.02), rtol=1e-5)


def test_an_id_that_comes_twice_in_a_minibatch_has_one_gradient() -> None:
    """The squares are those of the sum, as on servers, in a ring and in torch; Keras adds both."""
    model = keras.Sequential([keras.Input((2,), dtype="int64"), L.Embedding(4, 1)])
    adagrad = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=1e-12)
    job = Job(model, adagrad, lambda labels, predictions: tf.reduce_sum(predictions), [])
    before = job.trained.places[0].value.copy()
    ids = np.full((BATCH, 2), 1)
    ids[0] = [2, 3]
    job.train((tf.constant(ids), None))
    # The first step of Adagrad is as long as the rate, whatever the gradient.
    moved = before - job.trained.places[0].value
    np.testing.assert_allclose(moved[:, 0], [0, 1, 1, 1], atol=1e-5)
