"""Models that return their own loss, in the forms that there are."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.unit.api.fitting import accuracy
from torch_edl import ElasticTrainer
from torch_edl.api.inputs import OwnLoss
from torch_edl.errors import UsageError

RECORDS = 40
X = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(4))
Y = (X.sum(1) > 0).long()


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Samples as a tokenizer and a collator return them."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": X[index], "labels": Y[index]}


class Classifier(nn.Module):
    """``form`` says how it returns its loss and its logits."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(3, 2)
        self.form = form

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.out(inputs)
        made: OrderedDict[str, Any] = OrderedDict(logits=logits)
        if labels is not None:
            made["loss"] = nn.functional.cross_entropy(logits, labels)
            made.move_to_end("loss", last=False)
        if self.form == "attributes":
            return SimpleNamespace(**made)
        if self.form == "tuple":
            return tuple(made.values())
        return made if self.form == "dict" else made["loss"]


def trainer(form: str, **options: Any) -> ElasticTrainer:
    model = Classifier(form)
    return ElasticTrainer(model, None, torch.optim.SGD(model.parameters(), lr=0.5), **options)


def plain() -> tuple[nn.Module, list[float]]:
    model = nn.Linear(3, 2)
    torch.manual_seed(0)
    model.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in zip(X.split(10), Y.split(10), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    loss = nn.functional.cross_entropy(model(X), Y).item()
    return model, [loss, accuracy(Y, model(X)).item()]


@pytest.mark.parametrize("form", ["dict", "attributes", "tuple"])
def test_a_model_trains_with_its_own_loss(form: str) -> None:
    made = trainer(form, metrics={"accuracy": accuracy})
    options: dict[str, Any] = {"batch_size": 10, "shuffle": False, "verbose": False}
    history = made.fit(Texts(), eval_dataset=Texts(), **options)
    model, (loss, share) = plain()
    torch.testing.assert_close(made.model.out.weight, model.weight)
    assert history[0]["eval_loss"] == pytest.approx(loss, rel=1e-5)
    assert history[0]["eval_accuracy"] == pytest.approx(share)
    torch.testing.assert_close(made.predict(Texts(), batch_size=16), model(X).detach())


def test_a_model_may_return_its_loss_alone() -> None:
    made = trainer("loss")
    made.fit(Texts(), batch_size=10, shuffle=False, verbose=False)
    torch.testing.assert_close(made.model.out.weight, plain()[0].weight)


def test_a_model_without_a_loss_is_named() -> None:
    class Plain(Classifier):
        def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            return self.out(inputs)

    net = Plain("none")
    made = ElasticTrainer(net, None, torch.optim.SGD(net.parameters(), lr=0.5))
    with pytest.raises(UsageError, match=r"loss=None: the model gave \(10, 2\) float32; expected"):
        made.fit(Texts(), batch_size=10, verbose=False)


def test_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    ids = torch.randint(20, (RECORDS, 6), generator=torch.Generator().manual_seed(1))
    records = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": (row[0] > 9).long()}
        for row in ids
    ]
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    made = ElasticTrainer(model, None, optimizer, metrics={"accuracy": accuracy})
    history = made.fit(records, batch_size=8, epochs=10, eval_dataset=records, verbose=False)
    assert history[-1]["eval_loss"] < 0.7 * history[0]["eval_loss"]
    assert history[-1]["eval_accuracy"] > 0.9
    assert made.predict(records, batch_size=16).shape == (RECORDS, 2)


def test_one_logit_of_one_record_is_no_loss() -> None:
    own = OwnLoss(lambda features: (features,))
    logit = torch.zeros(1, 1)
    assert own.call(logit) is logit
