"""Model files: what is accepted, and how each way of breaking the contract is told."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch

from torch_edl.errors import ContractError, UsageError, UserCodeError
from torch_edl.interfaces import Batch
from torch_edl.metrics import AUC
from torch_edl.pytorch.contract import TorchValues, load_contract, report_model
from torch_edl.pytorch.step import Step
from torch_edl.training.contract.functions import UserMetric
from torch_edl.training.contract.source_files import user_traceback
from torch_edl.training.task_results import TaskMetrics, summarize

GOOD = """
import torch
def model(): return torch.nn.Linear(2, 1)
def loss(labels, predictions): return (labels - predictions).pow(2).mean()
def optimizer(params): return torch.optim.SGD(params, lr=0.1)
def feed(records, mode, metadata): return torch.zeros(len(records), 2), torch.zeros(len(records), 1)
"""

LOSS_OF_TORCH = GOOD.replace(
    "def loss(labels, predictions): return (labels - predictions).pow(2).mean()",
    "loss = torch.nn.BCEWithLogitsLoss()",
)


def write(folder: Path, text: str, name: str = "mymodel.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def without(name: str) -> str:
    return "\n".join(line for line in GOOD.splitlines() if not line.startswith(f"def {name}("))


def test_a_good_file(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path, GOOD))
    model = contract.make_model()
    report = report_model(model, contract.make_optimizer(model))
    assert (report.dense_elements, report.optimizer) == (3, "SGD")
    assert not report.optimizer_error
    assert not report.embeddings
    assert contract.make_metrics() == {}
    assert contract.make_callbacks() == []


@pytest.mark.parametrize(
    "text",
    [
        LOSS_OF_TORCH,
        GOOD.replace("loss(labels, predictions)", "loss(predictions, labels)").replace(
            "(labels - predictions).pow(2)",
            "torch.nn.functional.binary_cross_entropy_with_logits(predictions, labels)",
        ),
    ],
)
def test_a_loss_in_torchs_order(tmp_path: Path, text: str) -> None:
    labels, predictions = torch.tensor([0.0, 1.0]), torch.tensor([3.0, -30.0])
    loss = load_contract(write(tmp_path, text)).loss(labels, predictions)
    assert loss.item() == pytest.approx((3.0486 + 30) / 2, abs=1e-4)


@pytest.mark.parametrize("other", ["forward", "custom_model"])
def test_other_names_of_the_model(tmp_path: Path, other: str) -> None:
    text = GOOD.replace("def model(", f"def {other}(").replace("def feed(", "def dataset_fn(")
    assert isinstance(load_contract(write(tmp_path, text)).make_model(), torch.nn.Linear)


@pytest.mark.parametrize("name", ["model", "loss", "optimizer", "feed"])
def test_a_missing_function_is_named_with_an_example(tmp_path: Path, name: str) -> None:
    with pytest.raises(ContractError, match=rf"no function '{name}'[\s\S]*def {name}\("):
        load_contract(write(tmp_path, without(name)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("torch.nn.Linear(2, 1)", "3", "model returned int, expected a torch.nn.Module"),
        ("torch.optim.SGD(params, lr=0.1)", "None", "optimizer returned NoneType"),
        ("torch.nn.Linear(2, 1)", "1 / 0", "model.. raised ZeroDivisionError"),
        ("params, lr", "params.parameters(), lr", r"optimizer\(model.parameters\(\)\) raised Attr"),
    ],
)
def test_wrong_returns(tmp_path: Path, old: str, new: str, message: str) -> None:
    contract = load_contract(write(tmp_path, GOOD.replace(old, new)))
    with pytest.raises(ContractError, match=message):
        contract.make_optimizer(contract.make_model())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("feed(records, mode, metadata)", "feed(records)"), "does not take 3"),
        (GOOD.replace("loss(labels, predictions)", "loss(labels)"), "does not take 2 arguments"),
        (LOSS_OF_TORCH.replace("BCEWithLogitsLoss()", "CTCLoss()"), r"target_lengths.* not take 2"),
        (LOSS_OF_TORCH.replace("Loss()", "Loss"), r"loss is the class BCE.*write BCEWithLogitsL"),
        ("import nothing_like_this\n" + GOOD, "nothing_like_this"),
        (
            GOOD.replace("def model()", "def model(dim)"),
            r"model\(dim\) is called without arguments; .* behind --: torch-edl run mymodel.py",
        ),
        (GOOD.replace("(2, 1)", "(DIM, 1)") + "import sys\nDIM = int(sys.argv[1])", r"behind --"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--dim', "
            "required=True)\np.parse_args()\n" + GOOD,
            r"sys.exit\(2\) .* after --, were: none; pass its arguments behind --",
        ),
        (
            GOOD.replace("def model(): return", "model ="),
            r"model is a model \(Linear\), not a function .*def model\(\): return Linear\(",
        ),
        (
            GOOD.replace(
                "def optimizer(params): return", "params = model().parameters()\noptimizer ="
            ),
            r"optimizer is an object .SGD., not a function; write .*def optimizer\(params\)",
        ),
        (GOOD + "def scheduler(): ...", "scheduler.. does not take 1 argument;"),
        (GOOD + "callbacks = []", "callbacks is an object .list., not a function"),
        ("import sys; sys.exit(3)\n" + GOOD, r"called sys.exit\(3\)"),
    ],
)
def test_files_that_cannot_be_loaded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        load_contract(write(tmp_path, text))


def test_arguments_reach_the_file(tmp_path: Path) -> None:
    text = "import sys\nassert sys.argv[1:] == ['--dim', '4'], sys.argv\n" + GOOD
    load_contract(write(tmp_path, text), ["--dim", "4"])


def test_the_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "WIDTH = 2", "neighbour.py")
    load_contract(write(tmp_path, "from neighbour import WIDTH\n" + GOOD))


def test_a_traceback_begins_in_the_users_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("torch.nn.Linear(2, 1)", "broken()"))
    contract = load_contract(path)
    with pytest.raises(ContractError) as caught:
        contract.make_model()
    text = user_traceback(caught.value, path)
    assert text.splitlines()[1].strip().startswith(f'File "{path}"')
    assert "NameError: name 'broken' is not defined" in text


def test_a_traceback_has_no_frames_of_ours_nor_of_what_ends_the_process(tmp_path: Path) -> None:
    path = write(tmp_path, "import argparse\nargparse.ArgumentParser().error('no')\n" + GOOD)
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    text = user_traceback(caught.value, path)
    assert text.count('  File "') == 1
    assert f'File "{path}", line 2' in text
    # What does not pass through the file begins where our frames end.
    step = Step(load_contract(write(tmp_path, GOOD)), torch.nn.Linear(3, 1), on_nan="stop",
                log_layers="")  # fmt: skip
    with pytest.raises(UserCodeError) as failed:
        step.predict(torch.ones(4, 2))
    frames = re.findall(r'  File "(.*)"', user_traceback(failed.value, path))
    assert frames
    assert not any("/torch_edl/" in frame for frame in frames)
    # One that was never raised has no frames at all.
    assert user_traceback(ValueError("no good"), path) == "ValueError: no good\n"


def test_an_unsupported_optimizer_is_reported_with_the_list(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path, GOOD.replace("SGD", "NAdam")))
    model = contract.make_model()
    error = report_model(model, contract.make_optimizer(model)).optimizer_error
    assert "NAdam" in error
    assert "torch.optim.Adagrad" in error


def test_an_optimizer_that_needs_a_closure_is_refused(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path, GOOD.replace("SGD", "LBFGS")))
    with pytest.raises(ContractError, match="LBFGS, whose step needs a closure"):
        contract.make_optimizer(contract.make_model())


def test_metrics_must_be_a_dict_of_metrics(tmp_path: Path) -> None:
    for made, message in {
        "3": r"\['a'\] returned int",
        "torch.nn.MSELoss": r"\['a'\] is the class MSELoss.*write MSELoss\(\)",
    }.items():
        text = f"{GOOD}\ndef eval_metrics_fn(): return {{'a': {made}}}"
        with pytest.raises(UsageError, match=message):
            load_contract(write(tmp_path, text)).make_metrics()


def test_metrics_may_be_of_one_output_of_the_model(tmp_path: Path) -> None:
    text = f"""{GOOD}
from torch_edl.metrics import AUC
def loss(labels, outputs): return outputs["logits"].mean()
def share(labels, probs): return (probs > 0.5).double().mean()
def eval_metrics_fn():
    return {{"probs": {{"auc": AUC("probabilities"), "share": share}}, "both": lambda y, p: len(p)}}
"""
    contract = load_contract(write(tmp_path, text))
    made = contract.make_metrics()
    assert {name: metric.output for name, metric in made.items()} == {
        "probs_auc": "probs",
        "probs_share": "probs",
        "both": "",
    }
    measured = TaskMetrics(contract.loss, made, TorchValues())
    outputs = {"logits": torch.tensor([-1.0, 2.0, 3.0]), "probs": torch.tensor([0.2, 0.9, 0.8])}
    batch = Batch(None, torch.tensor([0, 1, 0]), 3)
    measured.update(batch, outputs)
    states = {state.name: state for state in measured.states()}
    assert states["probs_share"].sum == pytest.approx(2)
    assert states["both"].sum == 2 * 3
    values = summarize(made, [states["probs_auc"]], TorchValues())
    assert values == {"probs_auc": pytest.approx(1.0)}
    # Labels in a dict, as for several tasks: a metric gets those with the name of its output.
    tasks = {name: UserMetric(AUC("probabilities"), name) for name in ("probs", "other")}
    own = TaskMetrics(lambda labels, outputs: 0.0, tasks, TorchValues())
    labels = {"probs": batch.labels, "other": 1 - batch.labels}
    own.update(Batch(None, labels, 3), {"probs": outputs["probs"], "other": outputs["probs"]})
    assert [tasks[name].made.compute() for name in tasks] == pytest.approx([1, 0], abs=1e-3)
    with pytest.raises(ContractError, match=r"'probs', and the model returned {logits: \(3,\)"):
        measured.update(batch, {"logits": outputs["logits"]})
    with pytest.raises(ContractError, match=r"two metrics 'probs_auc'; rename one"):
        load_contract(
            write(tmp_path, text.replace('"both"', '"probs_auc"'), "two.py")
        ).make_metrics()


def test_a_callback_that_would_never_be_called_is_refused(tmp_path: Path) -> None:
    text = f"""{GOOD}
class Board:
    once = 3
    def on_train_begin(self, model): ...
    def on_batch_end(self, step, loss): ...
    def flush(self): ...
class Own(Board):
    def on_epoch_ends(self, epoch): ...
def callbacks(): return [{{}}()]
"""
    contract = load_contract(write(tmp_path, text.replace("{}", "Board")))
    assert len(contract.make_callbacks()) == 1
    contract = load_contract(write(tmp_path, text.replace("{}", "Own"), "own.py"))
    with pytest.raises(
        ContractError, match=r"Own.on_epoch_ends would never be called; .* on_epoch_end, on_task"
    ):
        contract.make_callbacks()


WITH_COLUMNS = (
    GOOD
    + """
from torch_edl import preprocessing
from torch_edl.preprocessing import Columns, column
clicks = Columns(x=column("x"))
same = clicks
"""
)


def test_the_preprocessing_of_a_file_has_any_name(tmp_path: Path) -> None:
    contract = load_contract(write(tmp_path, WITH_COLUMNS))
    assert contract.preprocessing is not None
    assert '"column": "x"' in contract.preprocessing.spec
    assert load_contract(write(tmp_path, GOOD)).preprocessing is None
    # Those that are not fitted need no pass, and no place in the model.
    two = WITH_COLUMNS + "other = Columns(y=column('y'))\n"
    assert load_contract(write(tmp_path, two, "two.py")).preprocessing is None
    fitted = two + "one = Columns(z=column('z').normalize())\n"
    found = load_contract(write(tmp_path, fitted, "fitted.py")).preprocessing
    assert found is not None
    assert '"column": "z"' in found.spec
    both = fitted + "more = Columns(z=column('z').normalize())\n"
    with pytest.raises(ContractError, match=r"one and more need to be fitted; a file"):
        load_contract(write(tmp_path, both, "both.py"))


def test_a_report_has_the_device() -> None:
    model = torch.nn.Linear(1, 1)
    report = report_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert report.device.startswith("cpu")
