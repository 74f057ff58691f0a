"""The code that is sent to a cluster: the model file and the local modules that it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.client import run


def test_local_modules_are_found_and_libraries_are_not(tmp_path: Path) -> None:
    for path, text in {
        "model.py": "import torch\nfrom net import layers\nimport features.hashing as h\n",
        "net/__init__.py": "",
        "net/layers.py": "from .blocks import Block\nfrom net import sizes\n",
        "net/blocks.py": "def later():\n    import lazy\n",
        "net/sizes.py": "",
        "features/hashing.py": "",  # a package without __init__.py
        "lazy.py": "",
        "unused.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    found = run.collect_code(str(tmp_path / "model.py"))
    assert next(iter(found)) == "model.py"
    assert set(found) == {
        "model.py", "net/__init__.py", "net/layers.py", "net/blocks.py", "net/sizes.py",
        "features/hashing.py", "lazy.py",
    }  # fmt: skip
    assert found["net/blocks.py"] == b"def later():\n    import lazy\n"


def test_code_that_is_too_large_says_how_an_image_is_built(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import table\n")
    (tmp_path / "table.py").write_text("X = '" + "a" * (1 << 20) + "'\n")
    with pytest.raises(UsageError) as raised:
        run.collect_code(str(tmp_path / "model.py"))
    assert "the largest is table.py with 1,024 KiB; at most 900 KiB are sent" in str(raised.value)
    assert "torch-edl image writes a Dockerfile" in str(raised.value)


def test_modules_of_other_folders_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.py").write_text("from .. import shared\n")
    with pytest.raises(UsageError, match=r"outside the folder .*/a:"):
        run.collect_code(str(tmp_path / "a" / "model.py"))
