"""Errors of user code say what to do where their own text does not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from torch_edl.cli.arguments.user_file import require_imports
from torch_edl.errors import UsageError
from torch_edl.training.contract.advice import advice


def test_an_allocation_that_fails_is_told_in_gib_beside_what_is_free() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.uint8)
    said = advice(failed.value)
    assert said.startswith("; that is 1,073,741,824.0 GiB, and this machine has ")
    assert re.search(r"has [\d,.]+ GiB free of [\d,.]+ GiB: .* torch_edl.nn.Embedding", said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_absent_is_named() -> None:
    with pytest.raises((AssertionError, RuntimeError)) as failed:
        torch.zeros(1).cuda()
    assert 'write .to("cuda" if torch.cuda.is_available() else "cpu")' in advice(failed.value)


def test_an_error_that_says_what_it_is_gets_no_advice() -> None:
    assert advice(ValueError("no")) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import os\nimport absent_module.part\n", 2),
        ("from absent_module import x\n", 1),
        ("import torch, beside\nfrom . import absent_module\n", 0),
        ("try:\n    import absent_module\nexcept ImportError:\n    pass\n", 0),
        ("import sys\nsys.path.append('/x')\nimport absent_module\n", 0),
    ],
)
def test_a_missing_module_is_found_before_anything_starts(
    tmp_path: Path, text: str, line: int
) -> None:
    (tmp_path / "beside.py").touch()
    file = tmp_path / "train.py"
    file.write_text(text)
    if not line:
        require_imports(str(file), shown="train.py")
        return
    with pytest.raises(UsageError) as failed:
        require_imports(str(file), shown="train.py")
    where = f"train.py:{line}: absent_module is not installed in the environment {sys.prefix}: "
    assert str(failed.value).startswith(where + sys.executable)
