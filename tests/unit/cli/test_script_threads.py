"""How many threads the workers of a script get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torch_edl.cli.script import _launch_config, parse


@pytest.mark.parametrize(
    ("words", "named", "threads"),
    [
        ("--nproc-per-node 2", None, "4"),
        ("--workers 1:3", None, "2"),
        ("--workers 20", None, "1"),
        ("--nproc-per-node 1", None, None),  # torch takes all cores
        ("--workers 2", "7", "7"),
    ],
)
def test_the_cores_are_divided_without_a_warning(
    words: str,
    named: str | None,
    threads: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named or "")  # put back after the test
    if named is None:
        del os.environ["OMP_NUM_THREADS"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    script = tmp_path / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    _launch_config(parse([*words.split(), str(script)]))
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert "OMP" not in capfd.readouterr().err
