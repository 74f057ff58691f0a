"""The MNIST example: the data it prepares, its contract functions, and what it learns."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.waiting import HANG_S
from torch_edl.data.sources import expand, open_source

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "mnist"
IDX = ROOT.parent / "shared" / "data" / "mnist"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"mnist_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = load("model")
prepare = load("prepare")


def records_of(*paths: str) -> list[bytes]:
    found: list[bytes] = []
    for path in expand(paths):
        source = open_source(path)
        found += source.read(0, source.count)
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of such a small model only wait for each other, for minutes on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def accuracy_after(folder: Path, epochs: int) -> float:
    """Trains with a plain torch loop, as a reader of the example would."""
    torch.manual_seed(0)
    images, labels = model.feed(records_of(f"{folder}/train-*.recordio"), "training", None)
    net = model.model()
    optimizer = model.optimizer(net.parameters())
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            model.loss(labels[batch], net(images[batch])).backward()
            optimizer.step()
    images, labels = model.feed(records_of(f"{folder}/test.recordio"), "evaluation", None)
    with torch.no_grad():
        return float(model.eval_metrics_fn()["accuracy"](labels, net(images)))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn ([examples])")
    folder = tmp_path_factory.mktemp("digits")
    assert prepare.main([str(folder)]) == 0
    return folder


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> Path:
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()))
    return path


def test_digits_are_split_into_several_files_and_none_is_lost(digits: Path) -> None:
    train = [open_source(path) for path in expand([f"{digits}/train-*.recordio"])]
    test = open_source(str(digits / "test.recordio"))
    assert len(train) > 1
    assert sum(source.count for source in train) == 1437
    assert test.count == 360
    records = records_of(str(digits))
    assert {len(record) for record in records} == {1 + 64}
    # The same digits as scikit-learn's: every class as often, in another order.
    assert np.bincount([record[0] for record in records]).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert len({record[0] for record in records[:40]}) == 10


def test_the_same_command_writes_the_same_bytes(digits: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "prepare.py"), str(tmp_path / "again")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert "1437 digits to train and 360 to test" in done.stdout
    for path in sorted(digits.iterdir()):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


def test_feed_gives_images_and_labels_and_only_images_to_predict_for(digits: Path) -> None:
    records = records_of(str(digits / "test.recordio"))[:5]
    images, labels = model.feed(records, "training", None)
    assert images.shape == (5, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() == 1
    assert labels.tolist() == [record[0] for record in records]
    assert images[3, 0, 2, 1] == records[3][1 + 2 * 8 + 1] / 255
    assert torch.equal(model.feed(records, "prediction", None), images)


def test_the_model_takes_both_sizes() -> None:
    net = model.model()
    assert net(torch.zeros(3, 1, 8, 8)).shape == net(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_digits_reach_their_accuracy(digits: Path) -> None:
    assert accuracy_after(digits, epochs=10) >= 0.95


@pytest.mark.slow  # as the digits above, with more of them
@pytest.mark.skipif(not IDX.exists(), reason=f"no MNIST files in {IDX}")
def test_mnist_reaches_its_accuracy(tmp_path: Path) -> None:
    files = [str(IDX / f"t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1")]
    assert prepare.main([str(tmp_path), "--idx", *files]) == 0
    train = sum(open_source(path).count for path in expand([f"{tmp_path}/train-*"]))
    assert (train, open_source(str(tmp_path / "test.recordio")).count) == (8000, 2000)
    assert accuracy_after(tmp_path, epochs=7) >= 0.97


def test_idx_files_become_records_in_their_order(tmp_path: Path) -> None:
    images = np.arange(10 * 9, dtype=np.uint8).reshape(10, 3, 3)
    labels = np.arange(10, dtype=np.uint8)
    files = [write_idx(tmp_path / "i.gz", images), write_idx(tmp_path / "l.gz", labels)]
    out = tmp_path / "out"
    assert prepare.main([str(out), "--idx", *map(str, files), "--train", "7"]) == 0
    expected = [bytes([i]) + images[i].tobytes() for i in range(10)]
    assert records_of(f"{out}/train-*") == expected[:7]
    assert records_of(f"{out}/test.recordio") == expected[7:]


def test_bad_input_is_one_clear_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_idx(tmp_path / "i.gz", np.zeros((10, 3, 3), np.uint8))
    labels = write_idx(tmp_path / "l.gz", np.zeros(10, np.uint8))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(images.read_bytes()[:-9])
    short = tmp_path / "short.gz"
    short.write_bytes(gzip.compress(gzip.decompress(images.read_bytes())[:-1]))
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress(b"hello"))
    out = tmp_path / "out"
    for arguments, message in [
        ((labels, images), "do not belong together"),
        ((torn, labels), "torn.gz: not a readable .gz file"),
        ((short, labels), "89 bytes do not fill the shape (10, 3, 3)"),
        ((text, labels), "text.gz: not an IDX file"),
        ((tmp_path / "none.gz", labels), "none.gz: not a readable .gz file"),
        ((images, labels, "--train", "10"), "leave some to test on"),
    ]:
        assert prepare.main([str(out), "--idx", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
        assert not out.exists()
