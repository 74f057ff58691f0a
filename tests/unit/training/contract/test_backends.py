"""A model file is recognised by its imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torch_edl.config import DataConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.training.contract.backends import backend_of, importing, named, preloaded


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "torch"),
        ("import numpy", "torch"),
        ("import torch", "torch"),
        ("from keras.layers import Dense", "tensorflow"),
        ("import tf_compat", "tensorflow"),
        ("import tensorflow as tf\nimport torch", "torch"),
        ("from . import tensorflow", "torch"),
        ("import layers", "tensorflow"),
    ],
)
def test_the_imports_of_a_file_and_its_modules_tell(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("import tensorflow")
    (tmp_path / "model.py").write_text(text)
    assert backend_of(str(tmp_path / "model.py")).name == name


def test_both_backends_have_the_functions_that_each_job_needs() -> None:
    for package in ("torch", "tensorflow"):
        needed = {name for name, each in named(package).signatures.items() if each.required}
        assert needed == {"model", "loss", "optimizer", "feed"}


@pytest.mark.parametrize(
    ("text", "data", "words"),
    [
        ("import torch", DataConfig(train=("a.parquet", "b.csv")), ["torch", "parquet"]),
        ("import torch", DataConfig(eval=("part-*.csv",)), ["torch", "csv"]),
        ("import torch", DataConfig(train=("a.txt",), format="csv"), ["torch", "csv"]),
        ("import torch", DataConfig(train=("folder",)), ["torch"]),
        ("import torch", DataConfig(), ["torch"]),
        ("import keras", DataConfig(train=("a.parquet",)), []),
    ],
)
def test_what_a_node_imports_to_fork_workers(
    text: str, data: DataConfig, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(text)
    config = JobConfig(name="j", model_file=str(tmp_path / "model.py"), data=data)
    assert preloaded(config) == words


def test_a_missing_framework_is_named_with_its_extra() -> None:
    with (
        pytest.raises(UsageError, match=r"pip install 'torch-edl\[tensorflow\]'"),
        importing(named("keras")),
    ):
        raise ModuleNotFoundError("No module named 'keras'", name="keras")
    with pytest.raises(ModuleNotFoundError), importing(named("keras")):
        raise ModuleNotFoundError("No module named 'theirs'", name="theirs")


def test_to_recognise_a_file_imports_no_framework(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import keras")
    (tmp_path / "other.py").write_text("import torch")
    code = (
        "import sys; from torch_edl.training.contract.backends import backend_of;"
        f"[backend_of({str(tmp_path)!r} + n).title for n in ('/model.py', '/other.py')];"
        "print({'torch', 'tensorflow', 'keras'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
