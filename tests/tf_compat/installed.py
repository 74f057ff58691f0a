"""TensorFlow, where it is installed; the tests of it are skipped elsewhere, but never in CI."""

import json
import os
from pathlib import Path
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

__all__ = ["check_imports", "keras", "tf"]


def check_imports(folder: Path) -> None:
    """Workers that wrote there what they had imported had TensorFlow, and nothing of torch."""
    found = [json.loads(path.read_text()) for path in folder.glob("imported-*.json")]
    assert found
    for modules in found:
        packages = {name.partition(".")[0] for name in modules}
        assert {"tensorflow", "tf_compat", "torch_edl"} <= packages
        assert not packages & {"torch", "torchvision", "master"}
