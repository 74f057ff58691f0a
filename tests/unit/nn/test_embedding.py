"""Embeddings on a laptop: no servers, any torch optimizer, as a normal module."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import torch_edl
from torch_edl import _core
from torch_edl.errors import UsageError

EXTREMES = [0, -1, -2, 2**63 - 1, -(2**63), 7]


def twin(embedding: torch_edl.nn.Embedding, ids: list[int]) -> nn.Embedding:
    """A torch embedding whose row i is the row of ``ids[i]``."""
    with torch.no_grad():
        return nn.Embedding.from_pretrained(
            embedding(torch.tensor(ids)).clone(), freeze=False, sparse=False
        )


def through_a_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


def test_any_int64_is_an_id() -> None:
    embedding = torch_edl.nn.Embedding(None, 5)
    out = embedding(torch.tensor(EXTREMES))
    assert out.shape == (6, 5)
    assert len({tuple(row) for row in out.tolist()}) == 6
    assert torch.equal(out, embedding(torch.tensor(EXTREMES)))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
        lambda p: torch_edl.optim.Ftrl(p, lr=0.1, l1=0.001),
    ],
)
def test_trains_as_torch_does(make: Callable[..., torch.optim.Optimizer]) -> None:
    """All rows in every step, so that lazy rows and torch's dense ones agree."""
    ours = torch_edl.nn.Embedding(None, 4, initializer="normal")
    theirs = twin(ours, EXTREMES)
    here, there = make(ours.parameters()), make(theirs.parameters())
    ids, rows = torch.tensor([*EXTREMES, 7, 0]), torch.tensor([0, 1, 2, 3, 4, 5, 5, 0])
    for step in range(20):
        target = torch.full((8, 4), float(step % 3))
        for module, optimizer, index in ((ours, here, ids), (theirs, there, rows)):
            optimizer.zero_grad()
            (module(index) - target).pow(2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(
        ours(torch.tensor(EXTREMES)).detach(), theirs.weight.detach(), rtol=1e-5, atol=1e-5
    )


def test_gradients_accumulate_until_zero_grad() -> None:
    embedding = torch_edl.nn.Embedding(None, 2, initializer="zeros")
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    one = torch.tensor([3])
    for _ in range(2):
        embedding(one).sum().backward()
    optimizer.step()
    assert embedding(one).tolist() == [[-2.0, -2.0]]
    optimizer.zero_grad()
    embedding(one).sum().backward()
    optimizer.zero_grad()  # thrown away
    embedding(torch.tensor([4])).sum().backward()
    optimizer.step()
    assert embedding(torch.tensor([3, 4])).tolist() == [[-2.0, -2.0], [-1.0, -1.0]]


def test_two_lookups_in_one_pass_both_count() -> None:
    embedding = torch_edl.nn.Embedding(None, 1, initializer="zeros")
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    optimizer.zero_grad()
    (embedding(torch.tensor([1])) + 2 * embedding(torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    # Broadcast: row 1 is used twice with factor 1, and once each with factor 2.
    assert embedding(torch.tensor([1, 2])).tolist() == [[-4.0], [-2.0]]


def test_padding_is_zero_and_is_not_trained() -> None:
    embedding = torch_edl.nn.Embedding(10, 2, padding_idx=0, initializer=("constant", {"value": 1}))
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    embedding(torch.tensor([0, 1])).sum().backward()
    optimizer.step()
    assert embedding(torch.tensor([0, 1])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    embedding.padding_idx = None
    assert embedding(torch.tensor([0])).tolist() == [[1.0, 1.0]]


def test_padding_counts_from_the_end_as_in_torch() -> None:
    assert torch_edl.nn.Embedding(10, 2, padding_idx=-1).padding_idx == 9
    assert torch_edl.nn.Embedding(None, 2, padding_idx=-1).padding_idx == -1
    with pytest.raises(UsageError, match=r"padding_idx 10: must be in \[-10, 10\)"):
        torch_edl.nn.EmbeddingBag(10, 2, padding_idx=10)


def test_state_dict_carries_the_rows() -> None:
    first = torch_edl.nn.Embedding(None, 3, name="a", initializer="normal")
    wanted = first(torch.tensor(EXTREMES)).detach()
    second = torch_edl.nn.Embedding(None, 3, name="b", initializer="zeros")
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(torch.tensor(EXTREMES)), wanted)


def test_a_copy_has_rows_of_its_own() -> None:
    first = torch_edl.nn.Embedding(None, 2, initializer="zeros")
    optimizer = torch.optim.SGD(first.parameters(), lr=1.0)
    first(torch.tensor([5])).sum().backward()
    optimizer.step()
    second = copy.deepcopy(first)
    first(torch.tensor([5])).sum().backward()
    optimizer.step()
    assert second(torch.tensor([5])).tolist() == [[-1.0, -1.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch_edl.nn.Embedding(0, 4), "a table of 0 ids with rows of 4"),
        (lambda: torch_edl.nn.Embedding(None, 0), "a table of None ids with rows of 0"),
        (lambda: torch_edl.nn.Embedding(4, 4, initializer="he"), "initializer 'he'"),
        (lambda: torch_edl.nn.Embedding(4, 4, initializer=("normal", {"sd": 1})), "'sd'"),
        (lambda: torch_edl.nn.EmbeddingBag(4, 4, mode="max"), "mode 'max'"),
        (lambda: torch_edl.nn.Embedding(4, 4)(torch.rand(3)), "must be int64"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_an_id_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="10"):
        torch_edl.nn.Embedding(10, 2)(torch.tensor([10]))


def test_rows_are_a_pure_function_of_seed_table_and_id() -> None:
    torch.manual_seed(3)
    embedding = torch_edl.nn.Embedding(None, 4, name="t", initializer=("normal", {"std": 2.0}))
    got = embedding(torch.tensor(EXTREMES)).detach().numpy()
    args = {"mean": 0.0, "std": 2.0}
    wanted = _core.init_rows("t", 3, "normal", args, np.array(EXTREMES), 4)
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [False, True])
def test_bags_equal_torch(mode: str, last: bool) -> None:
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    ours = torch_edl.nn.EmbeddingBag(10, 4, mode, include_last_offset=last, initializer="normal")
    with torch.no_grad():
        weight = ours.rows(torch.arange(10))
    theirs = nn.EmbeddingBag.from_pretrained(weight, mode=mode, include_last_offset=last)
    offsets = torch.tensor([0, 2, 2, 5, 8] if last else [0, 2, 2, 5])
    torch.testing.assert_close(ours(ids, offsets), theirs(ids, offsets))
    square = nn.functional.embedding_bag(ids.view(2, 4), weight, mode=mode)
    torch.testing.assert_close(ours(ids.view(2, 4)), square)


def test_weighted_bags() -> None:
    bag = torch_edl.nn.EmbeddingBag(None, 2, "sum", initializer=("constant", {"value": 1.0}))
    ids, weights = torch.tensor([[1, 2], [3, 3]]), torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert bag(ids, per_sample_weights=weights).tolist() == [[7.0, 7.0], [1.0, 1.0]]
    bag.mode = "mean"
    assert bag(ids, per_sample_weights=weights).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    bag.mode = "sqrtn"
    torch.testing.assert_close(
        bag(ids, per_sample_weights=weights), torch.tensor([[1.4, 1.4], [1.0, 1.0]])
    )


@pytest.mark.parametrize("kind", [torch_edl.nn.Embedding, torch_edl.nn.EmbeddingBag])
def test_a_table_keeps_to_its_bound(kind: type[torch_edl.nn.embedding.Table]) -> None:
    embedding = kind(None, 4, max_rows=100)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=1.0)
    for step in range(40):
        optimizer.zero_grad()
        embedding(torch.arange(step * 10, step * 10 + 10).reshape(1, 10)).sum().backward()
        optimizer.step()
    local = embedding.local_rows
    assert local is not None
    assert 90 <= len(local.rows()[0]) <= 100
    assert min(local.rows()[0]) >= 300
    for limit in ("max_age", "max_rows", "max_bytes"):
        with pytest.raises(UsageError, match=f"{limit} 0: must be 1 or more, or None"):
            kind(None, 4, **{limit: 0})


PENALTIES: dict[str, Callable[[list[nn.Parameter]], torch.Tensor]] = {
    "norm": lambda parameters: parameters[0].norm(),
    "sum of squares": lambda parameters: sum(p.square().sum() for p in parameters),  # type: ignore[return-value]
    "one vector": lambda parameters: nn.utils.parameters_to_vector(parameters).norm(),
    "several at once": lambda parameters: torch.stack(torch._foreach_norm(parameters)).sum(),
}


@pytest.mark.parametrize("copied", [lambda model: model, copy.deepcopy, through_a_file])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_on_the_weight_of_a_table_is_refused(
    penalty: str, copied: Callable[[nn.Module], nn.Module]
) -> None:
    model = copied(nn.Sequential(torch_edl.nn.Embedding(None, 2), nn.Linear(2, 1)))
    loss = model(torch.arange(3)).sum() + PENALTIES[penalty](list(model.parameters()))
    with pytest.raises(UsageError, match="a penalty adds nothing: penalize the rows of the batch"):
        loss.backward()


def test_a_penalty_on_the_rows_of_a_batch_counts() -> None:
    embedding = torch_edl.nn.Embedding(None, 2, initializer=("constant", {"value": 1}))
    embedding(torch.tensor([5])).square().sum().backward()
    torch.optim.SGD(embedding.parameters(), lr=0.25).step()
    assert embedding(torch.tensor([5])).tolist() == [[0.5, 0.5]]


def test_gradients_of_a_table_cannot_be_had_without_backward() -> None:
    """Autograd would give them to the rows, and a backward would add them once more."""
    model = nn.Sequential(torch_edl.nn.Embedding(None, 2, initializer="zeros"), nn.Linear(2, 1))
    with pytest.raises(UsageError, match="the inputs have the weight of a table"):
        torch.autograd.grad(model(torch.arange(3)).sum(), list(model.parameters()))
    rows = model[0](torch.arange(3))
    loss = model[1](rows).sum()
    (gradient,) = torch.autograd.grad(loss, rows, retain_graph=True)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    torch.testing.assert_close(model[0](torch.arange(3)), -gradient)


def test_ids_that_change_in_place_are_looked_up_anew() -> None:
    """Tables share the unique ids of equal lookups only."""
    first, second = torch_edl.nn.Embedding(None, 2), torch_edl.nn.Embedding(None, 3)
    ids = torch.tensor([5, 6, 5])
    rows = [table(ids).detach().clone() for table in (first, second)]
    ids.numpy()[0] = 6  # torch does not notice
    for table, before in zip((first, second), rows, strict=True):
        assert torch.equal(table(ids), before[[1, 1, 0]])


@pytest.mark.parametrize("options", [{}, {"foreach": True}])
@pytest.mark.parametrize("to_none", [True, False])
def test_discarded_gradients_of_rows_are_not_applied(
    to_none: bool, options: dict[str, bool]
) -> None:
    table = torch_edl.nn.Embedding(None, 1, initializer="zeros")
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0, **options)
    for ids in ([1], [2]):
        table(torch.tensor([1])).sum().backward()
        optimizer.zero_grad(set_to_none=to_none)
        if ids == [2]:
            table(torch.tensor(ids)).sum().backward()
        optimizer.step()
    assert table.eval()(torch.tensor([1, 2])).tolist() == [[0.0], [-1.0]]
