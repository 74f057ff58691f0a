"""What a process imports before it does anything: all of it is time until the first step, and
memory of each process."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = {
    "cryptography",
    "keras",
    "kubernetes",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "sympy",
    "tensorflow",
    "torch",
    "yaml",
}


@pytest.mark.parametrize(
    ("modules", "needed"),
    [
        ("torch_edl.cli.arguments.parser", set()),
        ("torch_edl.cli.model_file", {"rich"}),
        # numpy and pyarrow come with the data, while the first worker imports torch.
        ("master.__main__", set()),
        ("torch_edl.ps_server.__main__", {"numpy"}),
        # Before its first heartbeat.
        ("torch_edl.training.worker", set()),
        # The worker of a model file of any framework, and that of torch.
        ("torch_edl.training.worker, torch_edl.training.run_file", {"numpy"}),
        ("torch_edl.training.worker, torch_edl.pytorch.model_file", {"numpy", "torch"}),
    ],
)
def test_a_process_starts_without_what_it_does_not_need(modules: str, needed: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert _HEAVY & set(done.stdout.split()) <= needed
