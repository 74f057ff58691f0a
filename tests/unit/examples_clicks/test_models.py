"""Wide & Deep and xDeepFM: their functions by themselves, then in a plain loop."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(params=["wide_deep", "xdeepfm"])
def model_file(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """The matrices are small: waiting for a second thread on a busy machine costs the most."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_feed_stacks_the_columns(generate: Any, model_file: Any) -> None:
    made = generate.records(generate.Truth(ids=1_000), 300, 0)
    table = generate.table(made)
    (ids, dense), labels = model_file.feed(table, "training", {})
    assert (ids.dtype, dense.dtype, labels.dtype) == (torch.int64, torch.float32, torch.float32)
    assert np.array_equal(ids.numpy(), made.ids)
    assert np.array_equal(dense.numpy(), made.dense)
    assert np.array_equal(labels.numpy(), made.labels)
    ids, dense = model_file.feed(table.drop(["label"]), "prediction", {})
    assert (ids.shape, dense.shape) == ((300, 26), (300, 13))


def test_a_cross_is_of_both_ids_and_of_its_pair_of_columns(wide_deep: Any) -> None:
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, 1_000, (500, 26)))
    crossed = wide_deep.crosses(ids)
    assert torch.equal(crossed, wide_deep.crosses(ids.clone()))
    pairs = torch.arange(13) * wide_deep.BUCKETS
    assert bool(((crossed >= pairs) & (crossed < pairs + wide_deep.BUCKETS)).all())
    for column in (0, 1):
        other = ids.clone()
        other[:, column] += 1
        changed = wide_deep.crosses(other) != crossed
        assert changed[:, 0].float().mean() > 0.99
        assert not bool(changed[:, 1:].any())


def test_the_wide_part_is_a_sum_of_weights(wide_deep: Any) -> None:
    torch.manual_seed(0)
    model = wide_deep.WideDeep(_embedding(13 * wide_deep.BUCKETS), 3, (8,))
    ids, dense = torch.randint(40, (5, 26)), torch.randn(5, 13)
    wide = model.weights.weight[ids].sum((1, 2))
    wide = wide + model.cross_weights.weight[wide_deep.crosses(ids)].sum((1, 2))
    deep = model.deep(torch.cat((model.embeddings(ids).flatten(1), dense), 1))
    expected = wide + deep.squeeze(1) + model.linear(dense).squeeze(1)
    torch.testing.assert_close(model((ids, dense)), expected)


def test_interactions_are_weighted_products_of_embeddings(xdeepfm: Any) -> None:
    torch.manual_seed(0)
    network = xdeepfm.CompressedInteractions(4, [3, 2])
    fields = torch.randn(2, 4, 5)

    def level(before: Tensor, weights: Tensor) -> Tensor:
        maps = torch.zeros(2, len(weights), 5)
        for h in range(len(weights)):
            for i in range(before.shape[1]):
                for j in range(4):
                    maps[:, h] += weights[h, i * 4 + j] * before[:, i] * fields[:, j]
        return maps

    first = level(fields, network.levels[0].weight[:, :, 0])
    second = level(first, network.levels[1].weight[:, :, 0])
    expected = torch.cat((first.sum(2), second.sum(2)), 1)
    torch.testing.assert_close(network(fields), expected, rtol=1e-4, atol=1e-4)
    assert network.width == 5


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_it_learns(generate: Any, model_file: Any) -> None:
    truth = generate.Truth(ids=60, factor_std=0.2)
    train, held_out = generate.records(truth, 12_000, 0), generate.records(truth, 5_000, 1)
    torch.manual_seed(0)
    name = "WideDeep" if hasattr(model_file, "WideDeep") else "XDeepFM"
    rows = 13 * model_file.BUCKETS if name == "WideDeep" else truth.ids
    model = getattr(model_file, name)(_embedding(rows), 8, (32,))
    optimizer = model_file.optimizer(model.parameters())
    (ids, dense), labels = model_file.feed(generate.table(train), "training", {})
    for start in range(0, len(labels), 256):
        part = slice(start, start + 256)
        optimizer.zero_grad()
        model_file.loss(labels[part], model((ids[part], dense[part]))).backward()
        optimizer.step()
    inputs, labels = model_file.feed(generate.table(held_out), "evaluation", {})
    auc = model_file.eval_metrics_fn()["auc"]
    with torch.no_grad():
        auc.update(labels, model(inputs))
    assert auc.compute() > 0.7  # after one pass over few records; the truth has 0.86


def _embedding(rows: int) -> Any:
    def make(dim: int) -> nn.Module:
        table = nn.Embedding(rows if dim == 1 else min(rows, 1_000), dim, sparse=True)
        nn.init.normal_(table.weight, 0, 0.03)
        return table

    return make
