"""Jobs of a Keras model as a user starts them: train on servers, evaluate, predict, export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import digits, place
from tests.tf_compat.installed import check_imports, keras
from tests.tf_compat.models import digits as model_file
from torch_edl.cli.__main__ import main
from torch_edl.data.sources.files.recordio import RecordIOSource

__all__ = ["digits", "place"]

MODEL = Path(model_file.__file__)


@pytest.fixture(scope="module")
def trained(place: Any, digits: Path) -> str:
    """What the terminal showed."""
    done = place(
        f"run {MODEL} --data {digits}/train-*.recordio --eval-data {digits}/test.recordio "
        "--ps 2 --workers 2 --epochs 4 --output model --summary s.json --tf-function"
    )
    return str(done.text)


def test_the_framework_is_named_and_the_model_learns(place: Any, trained: str) -> None:
    assert "digits.py is a model file of TensorFlow: job " in trained
    metrics = place.json("s.json")["metrics"]
    assert metrics["accuracy"] > 0.8
    # A metric of Keras is merged over the workers as a plain function is averaged.
    assert metrics["top"] == pytest.approx(metrics["accuracy"], abs=1e-6)


def test_a_worker_of_tensorflow_imports_nothing_of_torch(place: Any, trained: str) -> None:
    check_imports(place.folder)


@pytest.mark.usefixtures("trained")
def test_the_model_is_evaluated_and_predicts(place: Any, digits: Path) -> None:
    place(f"evaluate {MODEL} --from model --data {digits}/test.recordio --summary e.json")
    assert place.json("e.json")["metrics"] == pytest.approx(
        place.json("s.json")["metrics"], abs=1e-5
    )
    place(f"predict {MODEL} --from model --data {digits}/test.recordio --output p.npz")
    with np.load(place / "p.npz") as predicted:
        outputs = predicted["prediction"]
    assert outputs.shape == (360, 10)


@pytest.mark.usefixtures("trained")
def test_a_worker_of_torch_takes_the_model(place: Any, digits: Path) -> None:
    place(f"evaluate %/mnist/model.py --from model --data {digits}/test.recordio --summary t.json")
    for name, value in place.json("t.json")["metrics"].items():
        assert value == pytest.approx(place.json("s.json")["metrics"][name], abs=1e-5)


@pytest.mark.usefixtures("trained")
def test_the_model_is_exported_for_keras(place: Any, digits: Path) -> None:
    test = str(digits / "test.recordio")
    with np.load(place / "p.npz") as predicted:
        wanted = predicted["prediction"]
    images = np.array([record_of(record) for record in RecordIOSource(test).read(0, 360)])
    place(f"export model net.keras --model-file {MODEL}")
    whole = keras.models.load_model(place / "net.keras")
    np.testing.assert_allclose(whole(images, training=False), wanted, rtol=1e-4, atol=1e-4)


def record_of(record: bytes) -> Any:
    return np.frombuffer(record, np.uint8)[1:].reshape(8, 8, 1).astype(np.float32) / 255


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--pin-memory", "--pin-memory: not for model files of TensorFlow, and .* is one"),
    ],
)
def test_what_keras_models_do_not_have_is_refused_at_once(
    digits: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    assert main(["run", str(MODEL), "--data", str(digits), *flags.split()]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
