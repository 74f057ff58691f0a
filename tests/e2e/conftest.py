"""The command line as a user types it, in a folder of its own, and what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import HANG_S
from torch_edl.cli.__main__ import main

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).with_name("models")


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        """All that the terminal showed."""
        return self.stdout + self.stderr


class Place:
    """A folder to work in; model files are found by the name of ours or of an example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "TORCH_EDL_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "COLUMNS": "100",
        }

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def __call__(self, line: str, *more: str, ok: bool = True) -> Done:
        """Runs ``torch-edl LINE``; fails the test if it should end well and does not.

        Args:
            line: words; ``@NAME`` is one of our model files, ``%`` the examples' folder.
            more: words with blanks.
        """
        words = [self._word(w) for w in line.split()] + list(more)
        start = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "torch_edl.cli", *words],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip
        done = Done(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - start)
        assert (done.code == 0) == ok, f"exit code {done.code}\n{done.text[-4000:]}"
        assert not self.processes(), "processes outlived their command"
        return done

    def start(self, *command: str | Path, **popen: Any) -> subprocess.Popen[str]:
        """Starts any command in the folder; see :class:`subprocess.Popen`."""
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        popen = {"env": self.env, **streams, **popen}
        return subprocess.Popen(command, cwd=self.folder, text=True, **popen)

    def here(self, line: str) -> None:
        """Runs ``torch-edl LINE`` in this process, where torch is imported already."""
        with contextlib.chdir(self.folder):
            assert main(line.split()) == 0

    def json(self, name: str) -> dict[str, Any]:
        """A file that a command wrote."""
        return json.loads((self.folder / name).read_text())  # type: ignore[no-any-return]

    def processes(self) -> list[list[str]]:
        """The command lines of jobs that still run here."""
        home = self.env["TORCH_EDL_HOME"]
        return [
            p.info["cmdline"]
            for p in psutil.process_iter(["cmdline", "environ"])
            if (p.info["environ"] or {}).get("TORCH_EDL_HOME") == home
        ]

    @staticmethod
    def _word(word: str) -> str:
        if word.startswith("@"):
            return str(MODELS / f"{word[1:]}.py")
        return word.replace("%", str(ROOT / "examples"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One for all tests of a file, so that they can continue from each other's jobs."""
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handwritten digits of scikit-learn as RecordIO: train-*.recordio, test.recordio."""
    folder = tmp_path_factory.mktemp("digits")
    prepare = ROOT / "examples" / "mnist" / "prepare.py"
    subprocess.run([sys.executable, prepare, folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def tiny_disk(place: Place) -> Iterator[Callable[[], Path]]:
    """A folder on a disk of 8 KB."""
    folder = place / "tiny"
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk cannot be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
