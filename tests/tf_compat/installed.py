"""TensorFlow, where it is installed; the tests of it are skipped elsewhere, but never in CI."""

import os
from typing import Any

import pytest

_REASON = "needs TensorFlow: pip install torch-edl[tensorflow]"

tf: Any
keras: Any
if "CI" in os.environ:
    import keras
    import tensorflow as tf
else:
    tf = pytest.importorskip("tensorflow", reason=_REASON)
    keras = pytest.importorskip("keras", reason=_REASON)

__all__ = ["keras", "tf"]
