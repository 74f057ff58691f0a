"""ElasticTrainer against the loop that a user would write."""

from __future__ import annotations

import copy
import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import torch_edl
from torch_edl.errors import UsageError
from torch_edl.trainer.evaluate import part_of

N, BATCH = 100, 8


def accuracy(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return (predictions.argmax(1) == labels).float().mean()


def data(seed: int = 0) -> TensorDataset:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Rows(Dataset[dict[str, Any]]):
    """A dict for each record, as Hugging Face's datasets give them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = data()[index]
        return {"x": x, "labels": int(y)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from data()


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def trainer(
    model: nn.Module | None = None, lr: float = 0.05, **options: Any
) -> torch_edl.ElasticTrainer:
    model = model or net()
    options.setdefault("loss", nn.CrossEntropyLoss())
    if "optimizer" not in options:
        options["optimizer"] = torch.optim.Adam(model.parameters(), lr=lr)
    return torch_edl.ElasticTrainer(model, **options)


def plain_loop(
    epochs: int = 2,
    batch: int = BATCH,
    clip: float = 0.0,
    schedule: Callable[[Any], Any] | None = None,
    bf16: bool = False,
) -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = schedule(optimizer) if schedule else None
    for _ in range(epochs):
        for x, y in DataLoader(data(), batch_size=batch):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
    return model


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def fit(made: torch_edl.ElasticTrainer, dataset: Any = None, **options: Any) -> list[Any]:
    options = {"batch_size": BATCH, "shuffle": False, "epochs": 2, "verbose": False} | options
    return made.fit(data() if dataset is None else dataset, **options)


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


# ---- training ----


@pytest.mark.parametrize("kind", ["plain", "clip", "scheduler", "bf16"])
def test_fit_is_the_plain_loop_bit_by_bit(kind: str) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    extra: dict[str, Any] = {
        "plain": {},
        "clip": {"clip_grad_norm": 0.3},
        "scheduler": {"scheduler": decay(optimizer)},
        "bf16": {"precision": "bf16"},
    }[kind]
    fit(trainer(model, optimizer=optimizer, **extra))
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
    """As when a cell of a notebook is run again, or two models are compared."""
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


def test_progress_is_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    fit(trainer(metrics={"accuracy": accuracy}), eval_dataset=data(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("epoch 1/2: loss 0.")
    assert "eval_accuracy 0." in lines[0]
    fit(trainer(), verbose=False)
    assert capsys.readouterr().out == ""


# ---- data of all kinds ----


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
        (lambda a, b: {"a": a, "b": b}, {"a": x, "b": y.float()}),
    ):
        for dataset in (pairs, labelled):
            made = trainer(Both(form)).predict(dataset, batch_size=7)
            torch.testing.assert_close(made, expected, atol=0, rtol=0)
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


# ---- errors ----


def plain_loss(labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(predictions, labels)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        plain_loss,
        lambda y, p: F.cross_entropy(p, y),
        lambda logits, labels: F.cross_entropy(logits, labels),
    ],
)
def test_a_loss_in_torchs_order_or_in_ours(loss: Any) -> None:
    made = trainer(loss=loss)
    fit(made)
    assert torch.equal(parameters(made.model), parameters(plain_loop()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": F.relu, "optimizer": torch.optim.Adam}, "expected a torch.nn.Module"),
        ({"optimizer": torch.optim.Adam}, "such as torch.optim.Adam.*not Adam"),
        ({"optimizer": torch.optim.SGD(net().parameters(), 0.1)}, "none of the parameters"),
        ({"loss": nn.CrossEntropyLoss}, r"loss is the class .*write CrossEntropyLoss\(\)"),
        ({"loss": "mse"}, "expected a function"),
        ({"metrics": {"m": nn.MSELoss}}, "metric 'm' is the class MSELoss"),
        ({"metrics": {"m": 3}}, "metric 'm': expected a function .*, not int"),
        ({"metrics": {"loss": accuracy}}, "always there"),
        ({"precision": "fp16"}, "needs a GPU"),
        ({"precision": "tf32"}, "precision='tf32'"),
        ({"scheduler_interval": "batch"}, "'step' or 'epoch'"),
        ({"clip_grad_norm": -1.0}, "0 or more"),
        ({"checkpoint_every": 3}, "need checkpoint_dir"),
    ],
)
def test_what_cannot_work_is_said_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainer(**options)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (TensorDataset(torch.zeros(0, 4), torch.zeros(0)), {}, "the dataset is empty"),
        (TensorDataset(torch.zeros(8, 4)), {}, "a batch of the dataset is list.*with 'labels'"),
        (5, {}, "dataset int"),
        (data(), {"epochs": 0}, "epochs=0"),
        (data(), {"batch_size": 0}, "batch_size 0"),
        (Stream(), {"shuffle": True}, "order of its own"),
        (Stream(), {"num_workers": 2}, "num_workers"),
    ],
)
def test_data_that_cannot_work(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit(trainer(), dataset, **options)


def test_a_loss_for_each_record_is_refused() -> None:
    made = trainer(loss=nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(UsageError, match=r"loss returned \(8,\) float32; expected a scalar"):
        fit(made)


def test_nothing_to_evaluate() -> None:
    empty = TensorDataset(torch.zeros(0, 4), torch.zeros(0))
    for call in (trainer().evaluate, trainer().predict):
        with pytest.raises(UsageError, match="the dataset is empty"):
            call(empty)
    with pytest.raises(UsageError, match="the suffix selects"):
        trainer().save("model.bin")


def test_a_job_of_ones_own() -> None:
    job = torch_edl.init(seed=3)
    try:
        made = trainer(job=job)
        assert made.job is job
        fit(made)
        assert job.step == 2 * -(-N // BATCH)
        with pytest.raises(UsageError, match=r"torch_edl.init\(\)"):
            trainer(job=job, seed=1)
        again = trainer(job=job)  # the cell of a notebook, once more
        fit(again)
        assert job.step == 2 * -(-N // BATCH)
        trainer()  # of its own job
    finally:
        job.close()


# ---- notebooks ----

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
    "assert second[-1]['loss'] < first[0]['loss']; print('all cells ran')",
]


def test_cells_of_a_notebook() -> None:
    """One process, one namespace; some cells twice, and an exception in between."""
    run = """
import sys, traceback
names = {"__name__": "__main__"}
for cell in sys.argv[1:]:
    try:
        exec(cell, names)
    except RuntimeError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
"""
    cells = [*CELLS[:4], *CELLS[1:4], *CELLS[4:]]
    done = subprocess.run(
        [sys.executable, "-c", run, *cells], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "all cells ran", done.stderr
    assert done.returncode == 0
