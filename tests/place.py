"""A folder in which commands of torch-edl run, and the processes of its jobs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import COMMAND_S
from torch_edl.cli.__main__ import main

ROOT = Path(__file__).parents[1]
MODELS = Path(__file__).parent / "e2e" / "models"
EDL = (sys.executable, "-m", "torch_edl.cli")


def processes_of(home: str | Path) -> list[psutil.Process]:
    """The processes of the jobs whose folders are in ``home``, and the commands that run there."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TORCH_EDL_HOME") == str(home)
    ]


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
        self.started: list[subprocess.Popen[str]] = []
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
            [*EDL, *words],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=COMMAND_S,
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
        self.started.append(subprocess.Popen(command, cwd=self.folder, text=True, **popen))
        return self.started[-1]

    def edl(self, *words: str | Path, **popen: Any) -> subprocess.Popen[str]:
        """Starts ``torch-edl WORDS``."""
        return self.start(*EDL, *words, **popen)

    def close(self) -> None:
        """Kills what was started here, and what is left of jobs."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.started:
            started.communicate()

    def here(self, line: str) -> None:
        """Runs ``torch-edl LINE`` in this process, where torch is imported already."""
        with contextlib.chdir(self.folder):
            assert main(line.split()) == 0

    def json(self, name: str) -> dict[str, Any]:
        """A file that a command wrote."""
        return json.loads((self.folder / name).read_text())  # type: ignore[no-any-return]

    def processes(self) -> list[psutil.Process]:
        """The processes of jobs and commands that run here."""
        return processes_of(self.env["TORCH_EDL_HOME"])

    @staticmethod
    def _word(word: str) -> str:
        if word.startswith("@"):
            return str(MODELS / f"{word[1:]}.py")
        return word.replace("%", str(ROOT / "examples"))
