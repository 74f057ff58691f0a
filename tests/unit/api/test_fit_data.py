"""The trainer class over data of all kinds: training, evaluation, prediction, files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import torch_edl
from tests.unit.api.fitting import (
    N,
    Named,
    Rows,
    Stream,
    accuracy,
    data,
    fit,
    net,
    parameters,
    plain_loop,
    trainer,
)
from torch_edl.api.evaluate import part_of
from torch_edl.errors import UsageError


def dict_model() -> torch_edl.ElasticTrainer:
    return trainer(Named(net()))


@pytest.mark.parametrize(
    ("make", "dataset", "options"),
    [
        (trainer, Stream(), {"shuffle": None}),
        (dict_model, Rows(), {}),
        (trainer, data(), {"num_workers": 2}),
        (trainer, data(), {"num_workers": 2, "accumulate": 1, "persistent_workers": True}),
    ],
    ids=["stream", "dicts", "processes", "persistent"],
)
def test_every_kind_of_dataset_trains_alike(
    make: Callable[[], torch_edl.ElasticTrainer], dataset: Any, options: dict[str, Any]
) -> None:
    made = make()
    fit(made, dataset, **options)
    assert torch.equal(parameters(made.model), parameters(plain_loop()))


def test_a_stream_is_evaluated_and_predicted() -> None:
    made = trainer(metrics={"accuracy": accuracy})
    assert made.evaluate(Stream(), batch_size=7) == pytest.approx(
        made.evaluate(data(), batch_size=7)
    )
    assert torch.equal(made.predict(Stream(), batch_size=7), made.predict(data(), batch_size=7))
    # Each process of a DataLoader would read the whole stream.
    loaded = made.predict(Stream(), batch_size=7, num_workers=2)
    assert torch.equal(loaded, made.predict(data(), batch_size=7))
    assert made.evaluate(Stream(), batch_size=7, num_workers=2) == pytest.approx(
        made.evaluate(data(), batch_size=7)
    )


def test_files_are_data_too(tmp_path: Path) -> None:
    x, y = data().tensors
    lines = ["a,b,c,d,labels"]
    lines += [
        ",".join(map(str, [*row, label])) for row, label in zip(x.tolist(), y.tolist(), strict=True)
    ]
    (tmp_path / "some.csv").write_text("\n".join(lines) + "\n")

    def collate(table: Any) -> Any:
        columns = [torch.tensor(table[name].to_numpy()) for name in table.column_names]
        return torch.stack(columns[:-1], 1).float(), columns[-1].long()

    made = trainer()
    fit(made, tmp_path / "some.csv", collate_fn=collate)
    assert torch.equal(parameters(made.model), parameters(plain_loop()))
    found = made.evaluate(str(tmp_path / "*.csv"), batch_size=9, collate_fn=collate)
    assert found == pytest.approx(made.evaluate(data(), batch_size=9))


def test_parts_of_processes_are_contiguous_and_whole() -> None:
    items = TensorDataset(torch.arange(10))
    parts = [
        torch.cat([b[0] for b in part_of(items, rank, 3, 2, {})]).tolist() for rank in range(3)
    ]
    assert parts == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [len(list(part_of(Stream(), rank, 3, 30, {}))) for rank in range(3)] == [2, 1, 1]


# ---- evaluation and prediction ----


def test_evaluate_is_what_one_computes_by_hand() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
    made = trainer(
        metrics={
            "accuracy": accuracy,
            "tm": metric,
            "auc": torch_edl.metrics.AUC(),
            "ce": F.cross_entropy,
        },
        model=net(),
    )
    x, y = data().tensors
    with pytest.raises(UsageError, match="one score for each label"):
        made.evaluate(data(), batch_size=30)
    single = trainer(
        metrics={"accuracy": accuracy, "tm": metric, "ce": F.cross_entropy}, model=made.model
    )
    with torch.no_grad():
        out = made.model(x)
    expected = {
        "loss": float(F.cross_entropy(out, y)),
        "ce": float(F.cross_entropy(out, y)),
        "accuracy": float(accuracy(y, out)),
        "tm": float(accuracy(y, out)),
    }
    for _ in range(2):  # the metrics that were given count nothing themselves
        assert single.evaluate(data(), batch_size=30) == pytest.approx(expected, abs=1e-6)
    assert single.model.training


def test_evaluation_is_without_dropout_and_puts_the_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(0.5), net())
    made = trainer(model)
    assert made.evaluate(data(), batch_size=10) == made.evaluate(data(), batch_size=10)
    assert model.training
    model.eval()
    made.predict(data())
    assert not model.training


class Both(nn.Module):
    """Two inputs, and outputs of a form."""

    def __init__(self, form: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.form = form

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> Any:
        return self.form(one * self.scale, other * self.scale)


def test_predictions_have_the_form_of_the_model() -> None:
    x, y = data().tensors
    pairs, labelled = TensorDataset(x, y.float()), TensorDataset(x, y.float(), y)
    for form, expected in (
        (lambda a, b: (a, b), (x, y.float())),
        (lambda a, b: {"b": b, "a": a}, {"b": y.float(), "a": x}),
    ):
        for dataset in (pairs, labelled):
            made = trainer(Both(form)).predict(dataset, batch_size=7)
            torch.testing.assert_close(made, expected, atol=0, rtol=0)
            if isinstance(made, dict):
                assert list(made) == ["b", "a"]
    assert torch.equal(
        trainer().predict(data(), batch_size=7), trainer().predict(TensorDataset(x), batch_size=7)
    )
    assert dict_model().predict(Rows(), batch_size=7).shape == (N, 2)


# ---- files ----


@pytest.mark.parametrize("name", ["m.safetensors", "deep/m.pt"])
def test_a_saved_model_is_a_plain_state_dict(name: str, tmp_path: Path) -> None:
    model = net()
    model.register_parameter("tied", model[0].weight)  # type: ignore[index]
    made = trainer(model)
    fit(made)
    path = tmp_path / name
    made.save(path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    load = torch.load if path.suffix == ".pt" else safetensors.torch.load_file
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)  # type: ignore[index, arg-type]
    other.load_state_dict(load(path))
    assert torch.equal(parameters(other), parameters(model))
    fit(made)
    assert not torch.equal(parameters(other), parameters(model))
    made.load(path)
    assert torch.equal(parameters(other), parameters(model))


def test_resume_goes_on_where_it_ended(tmp_path: Path) -> None:
    options = {"checkpoint_dir": tmp_path, "checkpoint_every": 5}
    whole = trainer()
    expected = fit(whole, epochs=4, shuffle=True)
    made = trainer(**options)
    fit(made, epochs=2, shuffle=True)
    made.job.close()
    with pytest.raises(UsageError, match="resume=True"):
        trainer(**options)
    again = trainer(resume=True, **options)
    history = fit(again, epochs=4, shuffle=True)
    again.job.close()
    assert torch.equal(parameters(again.model), parameters(whole.model))
    assert history == expected
