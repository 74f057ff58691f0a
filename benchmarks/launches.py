"""Starts `ring_worker.py` in the ways that are compared, and reads what its processes noted."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKER = str(Path(__file__).with_name("ring_worker.py"))


@dataclass(frozen=True)
class Note:
    """A process completed a step at that time of the clock."""

    pid: int
    step: int
    time: float


def start(
    launcher: list[str], mode: str, out: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts the worker under a launcher; its output goes to ``OUT.log``."""
    with open(f"{out}.log", "ab") as log:
        return subprocess.Popen(
            [*launcher, WORKER, mode, str(out), *words],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCH_EDL_HOME": f"{out}.home",
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
                ),
                **(env or {}),
            },
            stdout=log,
            stderr=log,
        )


def run(launcher: list[str], mode: str, out: Path, *words: str) -> list[Note]:
    """Runs it to its end.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    process = start(launcher, mode, out, *words)
    if process.wait() != 0:
        raise RuntimeError(Path(f"{out}.log").read_text()[-3000:])
    return notes(out)


def torchrun(workers: int, *words: str) -> list[str]:
    """``torchrun`` for one machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(workers), *words),
    ]


def torch_edl(workers: int, *words: str) -> list[str]:
    """``torch-edl run`` for one machine."""
    return [sys.executable, "-m", "torch_edl.cli", "run", "--workers", str(workers), *words]


def notes(out: Path) -> list[Note]:
    """What all processes noted, in the order of time."""
    found = [
        Note(int(file.stem), *json.loads(line))
        for file in out.glob("*.jsonl")
        for line in file.read_text().splitlines()
        if line.endswith("]")
    ]
    return sorted(found, key=lambda note: note.time)


def arguments(doc: str | None, *, workers: int, repeat: int) -> argparse.Namespace:
    """``--workers`` and ``--repeat``, with the first line of a program's docstring as its help."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--repeat", type=int, default=repeat)
    return parser.parse_args()


def folder() -> tempfile.TemporaryDirectory[str]:
    """A place for one benchmark's runs."""
    return tempfile.TemporaryDirectory(prefix="bench-")
