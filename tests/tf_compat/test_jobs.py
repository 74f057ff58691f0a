"""Jobs of a Keras model as a user starts them: train on servers, evaluate, predict, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import digits, place
from tests.tf_compat.installed import keras, tf
from tests.tf_compat.models import digits as model_file

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
    found = [json.loads(path.read_text()) for path in place.folder.glob("imported-*.json")]
    assert found
    for modules in found:
        packages = {name.partition(".")[0] for name in modules}
        assert {"tensorflow", "tf_compat", "torch_edl"} <= packages
        assert not packages & {"torch", "torchvision", "master"}


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
def test_the_model_is_exported_for_keras_and_for_serving(place: Any, digits: Path) -> None:
    images = np.random.default_rng(0).random((5, 8, 8, 1)).astype(np.float32)
    place(f"export model net.keras --model-file {MODEL}")
    whole = keras.models.load_model(place / "net.keras")
    wanted = whole(images, training=False).numpy()
    place(f"export model served --model-file {MODEL}")
    loaded = tf.saved_model.load(str(place / "served"))
    np.testing.assert_allclose(loaded.serve(images).numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_a_ring_is_refused_with_what_there_is_instead(place: Any, digits: Path) -> None:
    line = f"run {MODEL} --data {digits}/train-*.recordio --strategy allreduce --workers 2"
    done = place(line, ok=False)
    assert done.code == 2
    assert "TensorFlow has no elastic ring; use --strategy ps, or --strategy local" in done.text
