"""ElasticTrainer against the loop that a user would write."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.api.fitting import (
    BATCH,
    N,
    accuracy,
    data,
    decay,
    fit,
    net,
    parameters,
    plain_loop,
    trainer,
)
from tests.waiting import HANG_S
from tests.warm import FORKS
from torch_edl.errors import UsageError


@pytest.mark.parametrize("kind", ["plain", "clip", "scheduler", "bf16"])
def test_fit_is_the_plain_loop_bit_by_bit(kind: str) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    extra: dict[str, Any] = {"clip": {"clip_grad_norm": 0.3}, "bf16": {"precision": "bf16"}}
    parts = {"scheduler": decay(optimizer)} if kind == "scheduler" else extra.get(kind, {})
    fit(trainer(model, optimizer=optimizer, **parts))
    expected = plain_loop(
        clip=0.3 if kind == "clip" else 0.0,
        schedule=decay if kind == "scheduler" else None,
        bf16=kind == "bf16",
    )
    assert torch.equal(parameters(model), parameters(expected))


@pytest.mark.parametrize("options", [{"accumulate": 4}, {"global_batch_size": 4 * BATCH}])
def test_several_small_batches_are_one_large(options: dict[str, int]) -> None:
    """With clipping, which must see the gradient of the whole update."""
    made = trainer(clip_grad_norm=0.3)
    fit(made, **options)
    expected = parameters(plain_loop(batch=4 * BATCH, clip=0.3))
    assert made.job.step == 2 * 4
    torch.testing.assert_close(parameters(made.model), expected, atol=1e-6, rtol=0)


def test_a_scheduler_can_follow_epochs() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made = trainer(
        model, optimizer=optimizer, scheduler=decay(optimizer), scheduler_interval="epoch"
    )
    fit(made, epochs=3)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.9**3)


def test_fit_again_goes_on_in_another_order() -> None:
    made = trainer()
    first = fit(made, epochs=1, shuffle=True)
    second = fit(made, epochs=2, shuffle=True)
    assert [row["epoch"] for row in first + second] == [1, 1, 2]
    assert second[-1]["loss"] < first[0]["loss"]
    assert made.job.step == 3 * -(-N // BATCH)


def test_two_trainers_in_one_process() -> None:
    """A cell of a notebook may be run again, or two models may be compared."""
    one, other = trainer(), trainer()
    fit(one)
    fit(other)
    assert torch.equal(parameters(one.model), parameters(other.model))
    again = trainer(one.model)
    before = parameters(one.model)
    fit(again)
    assert not torch.equal(before, parameters(one.model))


def test_a_trainer_lets_go_of_its_model() -> None:
    """A cell that is run ten times does not hold ten models."""
    made = trainer()
    fit(made)
    model = weakref.ref(made.model)
    del made
    gc.collect()
    assert model() is None


def test_an_interrupt_leaves_a_trainer_that_works() -> None:
    class Stop:
        def __init__(self) -> None:
            self.armed = True

        def on_batch_end(self, step: int, loss: float) -> None:
            if self.armed and step == 3:
                self.armed = False
                raise KeyboardInterrupt

    made = trainer(callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt) as kept:
        fit(made)
    before = made.job.step, parameters(made.model)
    fit(made, epochs=1)
    assert made.job.step == before[0] + -(-N // BATCH)
    assert not torch.equal(before[1], parameters(made.model))
    assert kept.traceback  # which holds the frames of the first loop


def test_the_loss_of_an_epoch_counts_each_record_once() -> None:
    history = fit(trainer(lr=0.0), epochs=1)  # 100 records: the last batch is of 4
    x, y = data().tensors
    expected = F.cross_entropy(net()(x), y).item()
    assert history[0]["loss"] == pytest.approx(expected, abs=1e-6)


def test_callbacks_hear_what_happens() -> None:
    heard: list[Any] = []

    class Listener:
        def on_train_begin(self, model: nn.Module) -> None:
            heard.append("begin")

        def on_epoch_begin(self, epoch: int) -> None:
            heard.append(epoch)

        def on_batch_end(self, step: int, loss: float) -> None:
            assert loss > 0
            heard.append(f"step {step}")

        def on_epoch_end(self, epoch: int, figures: dict[str, float]) -> None:
            heard.append(sorted(figures))
            if epoch == 2:
                made.stop()

        def on_train_end(self, model: nn.Module) -> None:
            heard.append("end")

    made = trainer(callbacks=[Listener()])
    history = fit(made, epochs=5, accumulate=7, eval_dataset=data())
    figures = ["eval_loss", "loss"]
    assert heard == [
        "begin", 1, "step 1", "step 2", figures, 2, "step 3", "step 4", figures, "end",
    ]  # fmt: skip
    assert len(history) == 2


def test_a_callback_that_would_never_be_called_is_refused() -> None:
    class Listener:
        def on_batch_end(self, step: int, loss: float) -> None: ...
        def on_epoch_ended(self, epoch: int) -> None: ...

    with pytest.raises(
        UsageError, match=r"Listener.on_epoch_ended would .* an ElasticTrainer have"
    ):
        trainer(callbacks=[Listener()])


def test_progress_is_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    fit(trainer(metrics={"accuracy": accuracy}), eval_dataset=data(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2: loss 0.")
    assert "eval_accuracy 0." in lines[0]
    fit(trainer(), verbose=False)
    assert capsys.readouterr().out == ""


CELLS = [
    """
import torch, torch_edl
from torch import nn
from torch.utils.data import TensorDataset
x = torch.randn(64, 4)
digits = TensorDataset(x, (x.sum(1) > 0).long())
model = nn.Linear(4, 2)
""",
    """
trainer = torch_edl.ElasticTrainer(
    model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.5))
first = trainer.fit(digits, batch_size=8)
""",
    "raise RuntimeError('a typo')",
    "second = trainer.fit(digits, batch_size=8, epochs=2)",
    "assert trainer.predict(digits).shape == (64, 2)",
    """
job = torch_edl.init()
optimizer = torch.optim.SGD(model.parameters(), 0.5)
job.prepare(model, optimizer)
for x, y in job.loader(digits, batch_size=8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
assert job.step == 8
""",
    "assert second[-1]['loss'] < first[0]['loss']",
]


def run_cells(cells: list[str]) -> None:
    names = {"__name__": "__main__"}
    for cell in cells:
        try:
            exec(cell, names)
        except RuntimeError:
            sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()


def test_cells_of_a_notebook() -> None:
    """One process, one namespace; some cells twice, and an exception in between."""
    cells = [*CELLS[:4], *CELLS[1:4], *CELLS[4:]]
    process = FORKS.Process(target=run_cells, args=(cells,))
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0
