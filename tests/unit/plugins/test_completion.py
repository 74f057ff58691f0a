"""Completion of the command line: what argcomplete answers, and the key Tab in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("argcomplete", reason="needs torch-edl[completion]")

from tests.debian_package import require_package
from tests.terminal import Terminal
from torch_edl.cli.__main__ import main
from torch_edl.config import JobConfig
from torch_edl.launch.jobs.folder import JobFolder

BIN = Path(sys.executable).parent
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(torch-edl completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u; eval "$(torch-edl completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "torch-edl completion fish | source"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files, and a job of the name zebra-4242."""
    for name, value in (("TORCH_EDL_HOME", "edl"), ("HOME", "home"), ("XDG_DATA_HOME", "home")):
        (tmp_path / value).mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").touch()
    (tmp_path / "more.csv").touch()
    job = JobFolder("zebra-4242")
    job.dir.mkdir(parents=True)
    job.config_file.write_text(JobConfig(name=job.name, model_file="/m.py").to_json())
    return tmp_path


def completions(line: str) -> list[str]:
    """What torch-edl-complete answers at the end of a line, as a shell asks it."""
    answer = Path("answer")
    env = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([BIN / "torch-edl-complete"], env=env, check=True, capture_output=True)
    return [each.strip() for each in answer.read_text().split("\n") if each]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch-edl sta", ["stack", "status"]),
        ("torch-edl status --wa", ["--watch"]),
        ("torch-edl status --platform ", ["kubernetes", "local"]),
        ("torch-edl logs --role wor", ["worker"]),
        ("torch-edl completion ", ["bash", "fish", "zsh"]),
        ("torch-edl stop ze", ["zebra-4242"]),
        ("torch-edl run mo", ["model.py"]),
        ("torch-edl run model.py --data mo", ["model.py", "more.csv"]),
        ("torch-edl run model.py --epochs ", []),
    ],
)
def test_what_may_follow(line: str, words: list[str]) -> None:
    assert sorted(completions(line)) == words


@pytest.mark.parametrize("shell", SHELLS)
def test_the_key_tab_in_a_shell(shell: str) -> None:
    require_package(shell, lambda: shutil.which(shell) is not None)
    command, setup = SHELLS[shell]
    with Terminal(command) as terminal:
        terminal.type(f"{setup}; echo re''ady\n")
        terminal.read_until("ready")
        terminal.type("torch-edl stop ze\t")
        terminal.read_until("bra-4242")  # bash writes only what is missing
        terminal.type("\x15torch-edl dashb\t")  # Ctrl-U deletes the line
        terminal.read_until("oard")


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
