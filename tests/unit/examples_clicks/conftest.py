"""The files of the examples on click data as modules: they are a user's, and in no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_EXAMPLES = Path(__file__).parents[3] / "examples"


def _load(example: str, name: str) -> ModuleType:
    path = _EXAMPLES / example / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"clicks_{example}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def generate() -> ModuleType:
    return _load("deepfm", "generate")


@pytest.fixture
def wide_deep(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model file as ``torch-edl run model.py`` loads it without arguments."""
    monkeypatch.setattr(sys, "argv", ["model.py"])
    module = _load("wide_deep", "model")
    monkeypatch.setattr(module, "BUCKETS", 10_000)  # tables of torch hold them all
    return module


@pytest.fixture
def xdeepfm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model file of xdeepfm; see ``wide_deep``."""
    monkeypatch.setattr(sys, "argv", ["model.py"])
    return _load("xdeepfm", "model")
