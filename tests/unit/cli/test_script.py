"""A training script: the environment of its workers, and options without effect."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from torch_edl.cli import script as script_cli
from torch_edl.errors import UsageError


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
    script_cli.main(argparse.Namespace(words=["--seed", "7", str(script)], places={}))
    assert seen == [salt]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output out", "--output: no effect, since .* does not use torch_edl"),
        ("--workers 2 --keep-checkpoints 1", "--keep-checkpoints: no effect"),
        ("--detach", "--detach: no effect"),
        ("--workers 1:2", "--workers 1:2: .* its number of workers is fixed; write --workers 2"),
    ],
)
def test_options_that_a_plain_script_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    script = tmp_path / "plain.py"
    script.write_text("import torch\n")
    with pytest.raises(UsageError, match=message):
        script_cli.main(argparse.Namespace(words=[*words.split(), str(script)], places={}))
