"""The environment that the workers of a script get: threads, the salt of ``hash``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from torch_edl.cli import script as script_cli
from torch_edl.cli.torchrun_arguments import launch_config, parse


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
    launch_config(parse([*words.split(), str(script)]))
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert "OMP" not in capfd.readouterr().err


@pytest.mark.parametrize(("named", "salt"), [(None, "7"), ("11", "11"), ("random", "random")])
def test_texts_hash_alike_in_all_workers(
    named: str | None, salt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", named or "")  # put back after the test
    seen: list[str] = []
    monkeypatch.setattr(
        script_cli, "_run_plain", lambda *_: seen.append(os.environ["PYTHONHASHSEED"])
    )
    script = tmp_path / "plain.py"
    script.write_text("print(hash('user-1'))\n")
    script_cli.main(argparse.Namespace(words=["--seed", "7", str(script)]))
    assert seen == [salt]
