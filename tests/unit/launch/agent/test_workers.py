from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_edl.launch.agent.workers import STDOUT, WorkerProcess
from torch_edl.processes.process_group import ChildGroup


def test_the_output_of_a_worker_is_read_by_whole_lines_and_at_its_end_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with open(path, "wb") as file:
        process = subprocess.Popen([sys.executable, "-c", ""], stdout=file, start_new_session=True)
    worker = WorkerProcess(
        local_rank=0,
        rank=0,
        child=ChildGroup(process),
        files={STDOUT: str(path)},
        error_file=os.devnull,
        started_at=0.0,
    )
    path.write_text("a\nunfinished")
    assert list(worker.output()) == [("stdout", b"a")]
    assert list(worker.output()) == []
    worker.code = process.wait()
    assert list(worker.output()) == [("stdout", b"unfinished")]
    assert list(worker.output(final=True)) == []
    assert worker.log == str(path)
