"""The folders of jobs: of several that are created at once under one name, one is; and their
parent."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.unit.cli.conftest import MODEL
from torch_edl.cli.__main__ import main
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder, MasterAddress
from torch_edl.processes.process_group import start_time

PROCESSES, ROUNDS = 4, 25


def _create(barrier: Barrier, results: multiprocessing.Queue[list[str]]) -> None:
    """Creates the same job again and again, each time together with other processes."""
    said = []
    for _ in range(ROUNDS):
        barrier.wait()
        hold = None
        try:
            hold = folder.create(JobConfig(name="same", model_file="/net.py")).hold()
            said.append("created")
        except (UsageError, OSError) as error:
            said.append(str(error))
        barrier.wait()  # nobody lets go before all have tried
        if hold is not None:
            hold.close()
    results.put(said)


def test_of_jobs_that_start_at_once_under_one_name_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    each = [context.Process(target=_create, args=(barrier, results)) for _ in range(PROCESSES)]
    for process in each:
        process.start()
    said = [results.get() for _ in each]
    for process in each:
        process.join()
    for round in zip(*said, strict=True):
        losers = [text for text in round if text != "created"]
        assert len(losers) == PROCESSES - 1, round
        assert all("--job-name same: a job of that name is running" in text for text in losers)


def test_another_process_with_the_pid_of_the_master_is_not_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a word of its command line is the name of the job."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    job = folder.create(JobConfig(name="same", model_file="/net.py"))
    with subprocess.Popen([sys.executable, "-c", "input()", "same"], stdin=subprocess.PIPE) as it:
        since = start_time(it.pid)
        for started, is_alive in ((0, False), (since - 1, False), (since, True)):
            job.note_master(MasterAddress(address="h:1", token="t", pid=it.pid, started=started))
            assert job.is_alive() is is_alive
        it.kill()
    assert not job.is_alive()


def test_a_job_that_is_watched_says_so_to_another_watcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    job = folder.create(JobConfig(name="j", model_file="/net.py"))
    message = "j: another process runs this job; see torch-edl"
    with job.hold(), pytest.raises(UsageError, match=message):
        JobFolder("j").hold()
    JobFolder("j").hold().close()


@pytest.mark.parametrize("flags", [[], ["--detach"]])
def test_a_home_that_cannot_be_written_is_named_with_the_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    """In /proc, not even root may make a folder."""
    model, data = tmp_path / "net.py", tmp_path / "x.csv"
    model.write_text(MODEL)
    data.write_text("x\n1\n")
    monkeypatch.delenv("TORCH_EDL_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc")
    assert main(["run", str(model), "--data", str(data), *flags]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "/proc/.local/state/torch-edl/jobs, for the folders of jobs: " in said
    assert "with TORCH_EDL_HOME" in said
