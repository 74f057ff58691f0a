"""What a user who made a mistake sees: one line, exit code 2, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import MODEL
from torch_edl import __version__
from torch_edl.cli.__main__ import main


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model file and data; jobs would go to ``home`` in it."""
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "broken.py").write_text("def model(:\n")
    (tmp_path / "half.py").write_text(MODEL.replace("def loss", "def lss"))
    (tmp_path / "train.csv").write_text("x,y\n1,2\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run none.py --data train.csv", "none.py: no such file; the model file comes first"),
        ("run broken.py --data train.csv", "broken.py:1: "),
        ("run half.py --data train.csv", "half.py: no function 'loss': add for example:"),
        ("run net.py", "--data: missing; name files, folders or globs: --data train.parquet"),
        ("run net.py --data no.csv", "--data no.csv: no such file"),
        (
            "run net.py --data train.csv --epochs 0",
            "--epochs: 0: must be 1 or more, or the word stream",
        ),
        ("run net.py --data train.csv --eval-every 9", "--eval-every 9: there is nothing to"),
        ("run net.py --data train.csv --output mine", "--output "),
        ("predict net.py --from mine --data train.csv --output p.txt", "--output p.txt: the name"),
        ("predict net.py --from mine --data train.csv --output p.csv", "--from "),
        ("export mine out.pt", "SOURCE mine: no trained model there; name the --output"),
        ("status", "no job on this machine"),
        ("stop nobody", "no job on this machine"),
        ("chaos nobody --plan none.toml", "--plan none.toml: No such file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    place: Path,
    words: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TORCH_EDL_HOME", str(place / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    before = sorted(place.rglob("*"))
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {message}")
    assert said.out == ""
    assert sorted(place.rglob("*")) == before


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "torch-edl run model.py --data" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torch-edl {__version__}\n"


@pytest.mark.parametrize("words", [["run", "--help"], ["list"]])
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "TORCH_EDL_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "torch_edl.cli", *words]
    try:
        done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert done.stderr == b""
