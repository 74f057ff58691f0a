"""As ``tests/faults/counting_model.py``, for workers of TensorFlow; says that one has read data."""

import importlib.util
import sys
import time
from pathlib import Path

import tensorflow as tf

_EXAMPLE = Path(__file__).parents[2] / "examples" / "counting" / "model_tf.py"
LAST, GATE = int(sys.argv.pop(1)), Path(sys.argv.pop(1))

_spec = importlib.util.spec_from_file_location("counting_example", _EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
counting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(counting)

forward, loss, optimizer = counting.forward, counting.loss, counting.optimizer


def feed(records, mode, metadata):
    numbers, labels = counting.feed(records, mode, metadata)
    GATE.with_suffix(".tensorflow").touch()
    if LAST in numbers:
        while not GATE.exists():
            time.sleep(0.01)
    return numbers, labels


def eval_metrics_fn():
    return {"records": lambda labels, predictions: tf.ones(len(labels))}
