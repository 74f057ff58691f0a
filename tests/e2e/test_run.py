"""Every feature of the command line, as real jobs on small data."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from tests.schemas import require_valid
from torch_edl.data.sources.files.recordio import RecordIOSource, RecordIOWriter
from torch_edl.plugins.formats.tfrecord import TFRecordWriter

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).with_name("models")
COUNTING = ROOT / "examples" / "counting" / "model.py"
FAST = "--batch-size 50 --records-per-task 100"


def load(path: Path) -> ModuleType:
    """A model file, as a plain script would import it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(ours: Any, theirs: Any, tolerance: float = 1e-5) -> bool:
    # Relative too: sums of float32 differ by the size of a minibatch and by the number of threads.
    return bool(np.allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=tolerance))


# ---- handwritten digits: one training job, and all that can be done with what it made ----


@pytest.fixture(scope="module")
def trained(place: Any, digits: Path) -> tuple[str, dict[str, Any]]:
    """What the terminal showed, and the summary."""
    done = place(
        f"run %/mnist/model.py --data {digits}/train-*.recordio --eval-data {digits}/test.recordio "
        "--ps 2 --workers 2 --epochs 10 --output model --summary s.json --job-name digits "
        "--checkpoint-dir steps --checkpoint-every 50 --keep-checkpoints 2 --eval-every 100 "
        "--log-layers 7 --tensorboard board"
    )
    return done.text, place.json("s.json")


def test_digits_are_learned_and_the_summary_says_all(place: Any, trained: Any) -> None:
    text, summary = trained
    require_valid("summary", summary)
    assert summary["metrics"]["accuracy"] >= 0.95
    assert summary["state"] == "finished"
    assert summary["records"] == 14370
    assert summary["tasks"] == 40
    assert summary["steps"] == 240
    assert text.rstrip().endswith(f"output: {place / 'model'}")
    assert summary["samples_per_s"] == pytest.approx(14370 / summary["wall_s"], rel=1e-3)
    processes = summary["processes"]
    roles = [(p["role"], p["id"]) for p in processes]
    assert sorted(roles) == [("master", 0), ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    exits = {r: {p["exit"] for p in processes if p["role"] == r} for r, _ in roles}
    assert exits["ps"] == {"stopped"}
    assert exits["master"] == {"exit code 0"}
    # A worker that was slow to start is stopped, too, when all is over.
    assert "exit code 0" in exits["worker"]
    assert exits["worker"] <= {"exit code 0", "stopped"}
    assert len({p["pid"] for p in processes}) == 5
    assert "epoch 10 of 10 is done" in text


def test_evaluations_come_at_their_steps(trained: Any) -> None:
    steps = [e["steps"] for e in trained[1]["evaluations"]]
    assert len(steps) in (2, 3)  # two that are due while one runs are one
    assert 100 <= steps[0] < 240
    assert steps[-1] == 240


@pytest.mark.slow
def test_layers_are_logged_to_the_terminal(trained: Any) -> None:
    assert re.search(
        r"worker-\d \| step 51 7 \(\d+, 10\): mean \S+ std \S+ min \S+ max \S+", trained[0]
    )


def test_checkpoints_are_kept_as_asked(place: Any, trained: Any) -> None:
    kept = sorted(p.name for p in (place / "steps").iterdir() if p.name != ".owner.json")
    assert len(kept) == 2
    assert all(re.fullmatch(r"step-\d+", name) for name in kept)
    assert kept[-1].endswith("240")


def test_tensorboard_has_scalars(place: Any, trained: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place / "board"))
    events.Reload()
    found = events.Scalars("eval/accuracy")[-1]
    assert found.step == 240
    assert close(found.value, trained[1]["metrics"]["accuracy"], 1e-6)
    assert "train/loss" in events.Tags()["scalars"]


@pytest.mark.parametrize("saved", ["model", pytest.param("steps", marks=pytest.mark.slow)])
def test_evaluate_gives_the_metrics_of_the_job(
    place: Any, digits: Path, trained: Any, saved: str
) -> None:
    """For the output folder and for the newest checkpoint; stdout has nothing but JSON."""
    done = place(
        f"evaluate %/mnist/model.py --from {saved} --data {digits}/test.recordio --json "
        "--batch-size 100 --records-per-task 100"
    )
    found = json.loads(done.stdout)
    require_valid("evaluate", found)
    assert found["records"] == 360
    assert found["metrics"].keys() == {"accuracy", "loss"}
    for name, value in trained[1]["metrics"].items():
        assert close(found["metrics"][name], value), name


@pytest.fixture(scope="module")
def logits(place: Any, digits: Path, trained: Any) -> np.ndarray[Any, Any]:
    """What plain torch says of the test images with the exported state_dict."""
    place.here("export model digits.pt")
    place.here("export model digits.safetensors")
    example = load(ROOT / "examples" / "mnist" / "model.py")
    net = example.model()
    net.load_state_dict(torch.load(place / "digits.pt", weights_only=True))
    other = load_file(place / "digits.safetensors")
    assert all(np.array_equal(other[k], v.numpy()) for k, v in net.state_dict().items())
    source = RecordIOSource(str(digits / "test.recordio"))
    net.eval()
    with torch.no_grad():
        return net(example.feed(source.read(0, 360), "prediction", None)).numpy()


def test_predictions_come_in_the_order_of_the_input(place: Any, digits: Path, logits: Any) -> None:
    place(
        f"predict %/mnist/model.py --from model --data {digits}/test.recordio --output p.npz "
        "--batch-size 16 --records-per-task 48 --job-name scores --workers 2 --strategy ps"
    )
    assert not (place / "home" / "jobs" / "scores" / "predictions").exists()
    found = np.load(place / "p.npz")["prediction"]
    assert found.shape == (360, 10)
    assert close(found, logits)


def test_a_worker_alone_computes_the_bits_of_a_plain_loop(place: Any) -> None:
    place("run @bits --workers 1 --no-shuffle --batch-size 64 --output bits")
    user = load(MODELS / "bits.py")
    torch.manual_seed(0)
    model = user.model()
    optimizer = user.optimizer(model.parameters())
    for start in range(0, user.RECORDS, user.BATCH):
        records = [str(n).encode() for n in range(start, start + user.BATCH)]
        x, labels = user.feed(records, "training", {})
        optimizer.zero_grad()
        user.loss(labels, model(x)).backward()
        optimizer.step()
    ours = load_file(place / "bits" / "model.safetensors")
    assert model.tiny.item() != 0
    for name, ended in model.state_dict().items():
        assert np.array_equal(ours[name], ended.numpy()), name


# ---- counting records ----


def test_sync_averages_exactly(place: Any) -> None:
    """With an odd number of pushes, the last one makes an update alone.

    Which one that is each server finds for itself, by what arrives last.
    """
    pq.write_table(pa.table({"n": np.arange(420)}), place / "count.parquet")
    words = (
        "--data count.parquet --mode sync --grads-to-wait 2 --workers 2 --ps 2 --batch-size 20 "
        "--records-per-task 40 --output sync"
    )
    place("run", str(COUNTING), *words.split())
    rows = load_file(place / "sync" / "embeddings" / "rows.safetensors")
    assert rows["ids"].tolist() == list(range(420))
    counts = rows["vectors"][:, 0].tolist()
    assert set(counts) == {0.5, 1.0}
    assert counts.count(1.0) <= 40
    total = load_file(place / "sync" / "model.safetensors")["total"]
    assert total.tolist() == [(420 + 20) / 2] * 3


def test_max_steps_is_exact_and_a_job_goes_on_from_its_checkpoint(place: Any) -> None:
    pq.write_table(pa.table({"n": np.arange(400)}), place / "count.parquet")
    line = (
        "--data count.parquet --ps 2 --batch-size 20 --records-per-task 100 "
        "--checkpoint-dir limited --output limited-model --summary limited.json"
    )
    words = line.split()
    place("run", str(COUNTING), *words, "--workers", "2", "--max-steps", "13")
    summary = place.json("limited.json")
    assert (summary["steps"], summary["records"]) == (13, 260)
    rows = load_file(place / "limited-model" / "embeddings" / "rows.safetensors")
    assert rows["vectors"][:, 0].tolist() == [1.0] * 260

    place("run", str(COUNTING), *words, "--resume")
    rows = load_file(place / "limited-model" / "embeddings" / "rows.safetensors")
    assert rows["ids"].tolist() == list(range(400))
    assert rows["vectors"][:, 0].tolist() == [1.0] * 400
    assert place.json("limited.json")["records"] == 400


# ---- a model file with a bit of everything ----


@pytest.fixture(scope="module")
def clicks(place: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The same 730 records as CSV, Parquet, TFRecord and RecordIO."""
    random = np.random.default_rng(0)
    id = random.integers(0, 1000, 730)
    x = random.normal(size=730).round(3)
    y = (x + (id % 7 - 3) / 2 + random.normal(size=730) > 0).astype(np.int64)
    table = pa.table({"id": id, "x": x, "y": y})
    pa_csv.write_csv(table, place / "clicks.csv")
    pq.write_table(table, place / "clicks.parquet", row_group_size=128)
    writers = {"tfrecord": TFRecordWriter, "recordio": RecordIOWriter}
    for suffix, writer in writers.items():
        with writer(place / f"clicks.{suffix}") as file:
            for row in zip(id, x, y, strict=True):
                file.write(" ".join(map(str, row)).encode())
    return {"id": id, "x": x.astype(np.float32), "y": y.astype(np.float32)}


@pytest.mark.parametrize(
    ("way", "suffix", "flags"),
    [
        ("dict", "csv", "--workers 2 --ps 2 --large-embedding 100"),
        pytest.param(
            "stream", "tfrecord", "--strategy local --loader-workers 1", marks=pytest.mark.slow
        ),
        pytest.param("tuple", "parquet", "--strategy local", marks=pytest.mark.slow),
        pytest.param(
            "dataset", "recordio", "--strategy ps --loader-workers 1", marks=pytest.mark.slow
        ),
    ],
)
def test_metrics_equal_those_of_plain_torch(
    place: Any, clicks: Any, way: str, suffix: str, flags: str
) -> None:
    """A table swapped for ours, dropout, batch norm, every kind of data, feed and metric."""
    metrics = pytest.importorskip("sklearn.metrics")
    notes = f"notes-{way}"
    place(
        f"run @clicks --data clicks.{suffix} --eval-data clicks.{suffix} {FAST} {flags} --epochs 2 "
        f"--output {way} --summary {way}.json -- {way} {notes}"
    )
    summary = place.json(f"{way}.json")
    assert summary["records"] == 1460
    assert summary["steps"] == 30

    place.here(f"export {way} {way}.pt")
    net = load(MODELS / "clicks.py").model().eval()
    assert isinstance(net.embedding, nn.Embedding)
    net.load_state_dict(torch.load(place / f"{way}.pt", weights_only=True))
    with torch.no_grad():
        said = net(torch.from_numpy(clicks["id"]), torch.from_numpy(clicks["x"]))
    truth = torch.from_numpy(clicks["y"])
    expected = {
        "loss": float(nn.functional.binary_cross_entropy_with_logits(said, truth)),
        "hits": float(((said > 0) == (truth > 0.5)).float().mean()),
        "auc": metrics.roc_auc_score(truth, said),
    }
    if way == "dict":
        expected |= {
            "exact_auc": metrics.roc_auc_score(truth, said),
            "f1": metrics.f1_score(truth, said > 0),
            "mean": float(said.mean()),
        }
    assert summary["metrics"].keys() == expected.keys()
    for name, value in expected.items():
        tolerance = 1e-4 if name == "auc" else 1e-5
        assert close(summary["metrics"][name], value, tolerance), name
    assert expected["auc"] > 0.6
    assert net.norm.num_batches_tracked > 0
    if "--large-embedding" in flags:
        assert (place / way / "embeddings" / "embedding.safetensors").exists()

    lines = [line.split() for line in (place / notes).read_text().splitlines()]
    # So little is over before a second worker has begun, now and then.
    begun = sum(w == ["begin", "Net"] for w in lines)
    assert 1 <= begun <= (2 if "--workers 2" in flags else 1)
    # A worker that has begun without a task is stopped when all is over.
    assert 1 <= sum(w == ["end", "Net"] for w in lines) <= begun
    # 730 records an epoch, 100 a task: the rest of 30 belongs to the seventh task.
    assert sorted(int(w[1]) for w in lines if w[0] == "task") == list(range(14))
    assert sum(w[0] == "batch" for w in lines) == 30


def test_a_source_and_a_processor_of_the_users_own(place: Any) -> None:
    """And an optimizer that no server runs."""
    place(f"run @own_data {FAST} --epochs 30 --output own --summary own.json")
    summary = place.json("own.json")
    assert summary["records"] == 9000
    weight = load_file(place / "own" / "model.safetensors")["weight"]
    assert close(weight, 3, 1e-3)
    place(f"predict @own_data --from own {FAST} --output own.csv")
    table = pa_csv.read_csv(place / "own.csv").to_pydict()
    assert close(table["tripled"], np.arange(300) / 100 * weight.item())
    assert table["rounded"] == np.round(np.float32(table["tripled"])).tolist()
