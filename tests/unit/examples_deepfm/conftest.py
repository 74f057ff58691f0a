"""The example's files as modules: they are scripts of a user and in no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_EXAMPLE = Path(__file__).parents[3] / "examples" / "deepfm"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deepfm_{name}", _EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def generate() -> ModuleType:
    return _load("generate")


@pytest.fixture
def model_file(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The model file as ``torch-edl run model.py`` loads it without arguments."""
    monkeypatch.setattr(sys, "argv", ["model.py"])
    return _load("model")
