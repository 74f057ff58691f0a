"""The output of the workers of a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch.distributed.launcher.api import LaunchConfig

from torch_edl.launch.script.workers import STDERR, STDOUT, LocalWorker, Workers


def test_the_output_of_a_worker_is_read_by_whole_lines_and_at_its_end_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with open(path, "wb") as file:
        process = subprocess.Popen([sys.executable, "-c", ""], stdout=file, start_new_session=True)
    worker = LocalWorker(
        name="worker-0",
        local_rank=0,
        rank=0,
        pid=process.pid,
        files={STDOUT: str(path)},
        error_file=os.devnull,
    )
    path.write_text("a\nunfinished")
    assert list(worker.output(now=0.0)) == [("stdout", b"a")]
    assert list(worker.output(now=0.0)) == []
    worker.code = process.wait()
    assert list(worker.output(now=0.0)) == [("stdout", b"unfinished")]
    assert list(worker.output(now=0.0, final=True)) == []
    assert worker.log == str(path)


def test_the_tracebacks_of_two_workers_are_shown_one_after_the_other(tmp_path: Path) -> None:
    made = Workers(LaunchConfig(1, 1, 1), ["true"], {})
    made.shown = [
        LocalWorker(
            name=f"worker-{rank}",
            local_rank=rank,
            rank=rank,
            pid=0,
            files={STDERR: str(tmp_path / f"{rank}.log")},
            error_file=os.devnull,
        )
        for rank in range(2)
    ]
    written = [b"Traceback (most recent call last):\n", b"  File a\n", b"  File b\n", b"KeyError\n"]
    shown = []
    for tenth, line in enumerate([*written, b"", b"", b""]):
        for worker in made.shown:
            with open(worker.files[STDERR], "ab") as file:
                file.write(line)
        shown += [worker.rank for worker, _, _ in made.output(now=0.1 * tenth, final=False)]
    assert shown == [0] * 4 + [1] * 4
