"""As ``tests/faults/counting_model.py``, but reads nothing before a worker of TensorFlow has."""

import importlib.util
import sys
import time
from pathlib import Path

import torch  # noqa: F401  (what the file is written for)

_MODEL = Path(__file__).parents[1] / "faults" / "counting_model.py"
_OTHER = Path(sys.argv[2]).with_suffix(".tensorflow")

_spec = importlib.util.spec_from_file_location("counting_model", _MODEL)
assert _spec is not None
assert _spec.loader is not None
counting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(counting)

model, loss, optimizer = counting.model, counting.loss, counting.optimizer
eval_metrics_fn = counting.eval_metrics_fn


def feed(records, mode, metadata):
    while not _OTHER.exists():
        time.sleep(0.01)
    return counting.feed(records, mode, metadata)
