"""Large torch embeddings become tables that start alike."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_edl.config.training import TrainConfig
from torch_edl.errors import UsageError
from torch_edl.nn import Embedding, EmbeddingBag
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import distribution, set_defaults, swap_large, tables_of
from torch_edl.wire import tensor_pb2 as tensor


@pytest.mark.parametrize(
    ("fill", "kind", "std"),
    [
        (lambda w: nn.init.normal_(w, std=0.01), "normal", 0.01),
        (lambda w: nn.init.normal_(w, mean=1.0), "normal", 1.0),
        (lambda w: nn.init.uniform_(w, -0.2, 0.1), "uniform", 0.3 / 12**0.5),
        (lambda w: nn.init.xavier_uniform_(w), "uniform", (2 / 20_016) ** 0.5),
        (lambda w: nn.init.zeros_(w), "zeros", 0.0),
        (lambda w: nn.init.constant_(w, 0.5), "constant", 0.0),
    ],
)
def test_the_distribution_is_kept(
    fill: Callable[[torch.Tensor], object], kind: str, std: float
) -> None:
    torch.manual_seed(0)
    weight = torch.empty(20_000, 16)
    fill(weight)
    found = distribution(weight)
    assert found.kind == kind
    if kind == "normal":
        assert found.args["std"] == pytest.approx(std, rel=0.02)
        assert found.args["mean"] == pytest.approx(float(weight.mean()), abs=0.02 * std)
    elif kind == "uniform":
        assert found.args["high"] - found.args["low"] == pytest.approx(std * 12**0.5, rel=0.02)
    elif kind == "constant":
        assert found.args["value"] == 0.5


def one(rows: int, dim: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(rows, dim))


@pytest.mark.parametrize(("rows", "dim"), [(200, 1), (5000, 16), (2000, 300)])
@pytest.mark.parametrize(
    "fill",
    [
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.xavier_normal_,
        nn.init.trunc_normal_,
        nn.init.zeros_,
        lambda w: w.exponential_(),
        lambda w: w.bernoulli_(0.01),
        lambda w: w.cauchy_(),
        lambda w: w.log_normal_(0, 2),
    ],
)
def test_random_rows_may_be_drawn_again(fill: Callable[[Any], object], rows: int, dim: int) -> None:
    torch.manual_seed(0)
    model = one(rows, dim)
    with torch.no_grad():
        fill(model[0].weight)
    assert swap_large(model, 10)


def positions(n: int, dim: int) -> torch.Tensor:
    return torch.sin(torch.arange(n).unsqueeze(1) / 1000 ** (torch.arange(dim) / dim))


@pytest.mark.parametrize(
    "trained",
    [
        lambda w: w + 0.2 * torch.randn(16),
        lambda w: w @ torch.randn(16, 16),
        lambda w: w * torch.rand(5000, 1),
        lambda w: torch.where(torch.arange(5000).unsqueeze(1) < 500, 2 * w, w),
        lambda w: torch.arange(80_000.0).view(5000, 16),
        lambda w: positions(5000, 16),
        lambda w: w.cumsum(0),
    ],
)
def test_rows_that_are_not_random_are_not_lost(
    trained: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    weight = trained(torch.randn(5000, 16))
    model = nn.ModuleDict({"word": nn.Embedding.from_pretrained(weight, freeze=False)})
    with pytest.raises(UsageError, match=r"embedding word \(5,000 x 16\).*--load SOURCE"):
        swap_large(model, 10)
    assert set(swap_large(model, 10, restored=True)) == {"word"}


def test_a_row_of_padding_that_counts_is_not_lost() -> None:
    model = nn.ModuleDict({"word": nn.Embedding(1000, 16, padding_idx=-1)})
    nn.init.normal_(model["word"].weight)
    with pytest.raises(UsageError, match=r"word: the row of its padding_idx 999 is not zero"):
        swap_large(model, 10)
    model["word"].weight.data[999].zero_()
    assert swap_large(model, 10)["word"].padding_idx == 999


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Embedding(10, 4)
        self.large = nn.Embedding(1000, 4, padding_idx=0)
        self.bag = nn.EmbeddingBag(1000, 4, mode="sum")
        self.normed = nn.Embedding(1000, 4, max_norm=1.0)
        self.tied = nn.Embedding(1000, 4)
        self.out = nn.Linear(4, 1000)
        self.out.weight = self.tied.weight
        self.deep = nn.ModuleDict({"a": nn.ModuleList([nn.Embedding(2000, 2)])})


def test_only_what_is_large_and_plain_is_swapped() -> None:
    model = Model()
    swapped = swap_large(model, threshold=1000)
    assert set(swapped) == {"large", "bag", "deep.a.0"}
    assert isinstance(model.large, Embedding)
    assert model.large.padding_idx == 0
    assert isinstance(model.bag, EmbeddingBag)
    assert model.bag.mode == "sum"
    assert isinstance(model.small, nn.Embedding)
    assert isinstance(model.tied, nn.Embedding)
    assert model.deep["a"][0].num_embeddings == 2000


def test_only_tables_without_any_bound_get_one() -> None:
    model = nn.ModuleDict(
        {
            "open": Embedding(None, 4),
            "bounded": Embedding(1000, 4),
            "own": EmbeddingBag(None, 4, max_rows=7),
            "bytes": Embedding(None, 4, max_bytes=1 << 20),
            "torch": nn.Embedding(10, 4),
        }
    )
    set_defaults(model, TrainConfig())
    assert model["open"].info(0).max_rows == 0
    set_defaults(model, TrainConfig(max_rows=50))
    tables = {name: module for name, module in model.items() if isinstance(module, Table)}
    limits = {name: module.info(0).max_rows for name, module in tables.items()}
    assert limits == {"open": 50, "bounded": 0, "own": 7, "bytes": 0}


def test_only_tables_that_do_not_say_how_they_keep_rows_are_told() -> None:
    model = nn.ModuleDict(
        {
            "open": Embedding(None, 4),
            "own": EmbeddingBag(None, 4, storage_dtype="fp16"),
            "byte": Embedding(None, 4, storage_dtype="int8"),
        }
    )
    set_defaults(model, TrainConfig(storage_dtype="bf16"))
    kept = {name: module.info(0).storage_dtype for name, module in model.items()}
    assert kept == {"open": tensor.DT_BFLOAT16, "own": tensor.DT_HALF, "byte": tensor.DT_INT8}
    with pytest.raises(UsageError, match="storage_dtype 'fp8': choose one of fp32, bf16, fp16, in"):
        Embedding(None, 4, storage_dtype="fp8")


def test_only_tables_that_do_not_say_where_rows_are_take_the_place_of_the_job() -> None:
    model = nn.ModuleDict(
        {
            "open": Embedding(None, 4),
            "own": EmbeddingBag(None, 4, storage="disk:/own"),
            "memory": Embedding(None, 4, storage="memory"),
        }
    )
    set_defaults(model, TrainConfig(table_storage="disk:/job"))
    places = {name: module.info(0).folder for name, module in model.items()}
    assert places == {"open": "/job", "own": "/own", "memory": ""}
    for wrong in ("disk", "disk:", "disk:relative", "/dir", "ssd:/dir"):
        with pytest.raises(UsageError, match=f"storage {wrong}: expected memory, or disk: and"):
            Embedding(None, 4, storage=wrong)
        with pytest.raises(UsageError, match=f"--table-storage {wrong}: expected memory"):
            TrainConfig(table_storage=wrong)


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.Adam])
def test_nothing_large_is_left_in_the_optimizer(kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1))
    optimizer = kind(model.parameters())
    weight = weakref.ref(model[0].weight)
    swapped = swap_large(model, 1000, optimizer)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert weight() is None
    held = [value for slots in optimizer.state.values() for value in slots.values()]
    assert all(value.numel() <= 4 for value in held)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert swapped["0"].weight.shape == (0, 4)


def test_the_path_of_a_module_names_its_table() -> None:
    shared = nn.ModuleDict({"a": Embedding(None, 2, name="x"),
                            "b": nn.Sequential(Embedding(None, 2)),
                            "c": Embedding(None, 2, name="x")})  # fmt: skip
    assert [t.table for t in tables_of(shared)] == ["x", "b.0", "x"]
    shared["d"] = Embedding(None, 3, name="x")
    with pytest.raises(UsageError, match="share the table 'x'"):
        tables_of(shared)
