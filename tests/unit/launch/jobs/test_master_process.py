from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for
from torch_edl.checkpoint.durable import write_text
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.launch.jobs.master_process import MasterProcess
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.endpoint import LOOPBACK, split


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A job of a script: its master lives until it is stopped."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    return folder.create(JobConfig(name="j", kind="script", model_file="/train.py"))


@pytest.fixture
def master(job: JobFolder, request: pytest.FixtureRequest) -> Iterator[MasterProcess]:
    made = MasterProcess(job, listen=f"{getattr(request, 'param', LOOPBACK)}:0")
    yield made
    made.close()


@pytest.mark.parametrize("master", ["0.0.0.0"], indirect=True)
def test_a_master_that_is_killed_is_started_again_at_its_address(
    job: JobFolder, master: MasterProcess
) -> None:
    """One that listens on all interfaces does so again."""
    address = master.start_and_listen()
    before = job.master()
    assert before is not None
    assert address == f"{LOOPBACK}:{split(before.listen)[1]}"
    first = master.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: master.revive() is None and master.pid != first)
    wait_for(lambda: (found := job.master()) is not None and found.pid == master.pid)
    found = job.master()
    assert found is not None
    assert (found.address, found.token) == (address, master.token)
    assert found.listen == before.listen
    assert LocalJob(job.name).status() is not None


def test_a_master_that_is_stopped_is_not_started_again(
    job: JobFolder, master: MasterProcess
) -> None:
    master.start_and_listen()
    assert job.is_watched()
    assert master.exit is None
    master.stop(grace_s=60)
    wait_for(lambda: master.revive() is not None)
    assert str(master.exit) == "exit code 143"
    master.close()
    assert not job.is_running()


def test_a_master_that_cannot_begin_says_why(job: JobFolder, master: MasterProcess) -> None:
    write_text(job.config_file, '{"kind": "none"}')
    with pytest.raises(UsageError, match=r"job\.json: "):
        master.start_and_listen()


@pytest.mark.parametrize("master", [LOOPBACK, "0.0.0.0"], indirect=True)
def test_a_command_with_another_token_says_so(job: JobFolder, master: MasterProcess) -> None:
    master.start_and_listen()
    found = job.master()
    assert found is not None
    job.note_master(dataclasses.replace(found, token="0123456789abcdef" * 2))
    with pytest.raises(UsageError, match="not of TORCH_EDL_TOKEN"):
        LocalJob(job.name).ask(pb.GetStatusRequest())
