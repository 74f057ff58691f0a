"""The model file: every function of the contract by itself, then all of them in a plain loop."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from torch_edl.metrics import Metric


def test_feed_stacks_the_columns(generate: Any, model_file: Any) -> None:
    made = generate.records(generate.Truth(ids=1_000), 300, 0)
    whole = generate.table(made)
    pieces = pa.concat_tables([whole[:100], whole[100:130], whole[130:]])
    for table in (whole, pieces):
        (ids, dense), labels = model_file.feed(table, "training", {})
        assert ids.dtype == torch.int64
        assert dense.dtype == labels.dtype == torch.float32
        assert ids.is_contiguous()
        assert np.array_equal(ids.numpy(), made.ids)
        assert np.array_equal(dense.numpy(), made.dense)
        assert np.array_equal(labels.numpy(), made.labels)


def test_feed_of_a_prediction_needs_no_label(generate: Any, model_file: Any) -> None:
    table = generate.table(generate.records(generate.Truth(ids=1_000), 10, 0)).drop(["label"])
    ids, dense = model_file.feed(table, "prediction", {})
    assert (ids.shape, dense.shape) == ((10, 26), (10, 13))


def test_the_forward_is_all_pairs_and_the_deep_net(model_file: Any) -> None:
    torch.manual_seed(0)
    model = model_file.DeepFM(lambda dim: nn.Embedding(40, dim), 3, (8,))
    ids, dense = torch.randint(40, (5, 26)), torch.randn(5, 13)
    rows = model.factors(ids)
    expected = model.weights(ids).sum((1, 2)) + model.linear(dense).squeeze(1)
    expected = expected + model.deep(torch.cat((rows.flatten(1), dense), 1)).squeeze(1)
    for a in range(26):
        for b in range(a + 1, 26):
            expected = expected + (rows[:, a] * rows[:, b]).sum(1)
    torch.testing.assert_close(model((ids, dense)), expected, rtol=1e-4, atol=1e-4)


def test_arguments_shape_the_model(model_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["model.py", "--dim", "4", "--hidden", "6", "5", "--lr", "0.5"]
    )
    model = model_file.model()
    assert model((torch.randint(9, (3, 26)), torch.randn(3, 13))).shape == (3,)
    assert [m.out_features for m in model.deep if isinstance(m, nn.Linear)] == [6, 5, 1]
    assert model.factors.embedding_dim == 4
    assert model_file.optimizer(model.parameters()).param_groups[0]["lr"] == 0.5


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """The matrices are small: waiting for a second thread on a busy machine costs the most."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_it_learns_the_planted_truth(generate: Any, model_file: Any) -> None:
    # Few ids and strong pairs, so that few records show them.
    truth = generate.Truth(ids=60, factor_std=0.2)
    train, held_out = generate.records(truth, 150_000, 0), generate.records(truth, 25_000, 1)
    torch.manual_seed(0)

    def embedding(dim: int) -> nn.Module:
        table = nn.Embedding(truth.ids, dim, sparse=True)
        nn.init.normal_(table.weight, 0, 0.03)
        return table

    model = model_file.DeepFM(embedding, 8, (32,))
    optimizer = model_file.optimizer(model.parameters())
    (ids, dense), labels = model_file.feed(generate.table(train), "training", {})
    for _ in range(2):
        for start in range(0, len(labels), 512):
            part = slice(start, start + 512)
            optimizer.zero_grad()
            model_file.loss(labels[part], model((ids[part], dense[part]))).backward()
            optimizer.step()
    inputs, labels = model_file.feed(generate.table(held_out), "evaluation", {})
    auc: Metric = model_file.eval_metrics_fn()["auc"]
    with torch.no_grad():
        auc.update(labels, model(inputs))
    best = generate.best(held_out.labels, held_out.logits)["best_auc"]
    assert best - auc.compute() < 0.01
