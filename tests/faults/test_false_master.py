"""Another user of the machine takes the port of a master that was killed: the processes of the job
tell it nothing, wait for their master, and go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.faults.conftest import ModelJob
from tests.other_user import false_listener, needs_root
from torch_edl.wire.endpoint import split

RECORDS = 6_000


@needs_root
@pytest.mark.slow
def test_a_false_master_is_told_nothing_and_ends_nothing(
    start_job: Callable[..., ModelJob],
) -> None:
    job = start_job(RECORDS, "--ps", "2", "--workers", "2")
    job.wait_for(lambda: job.done() > 200)
    where = json.loads((job.folder / "master.json").read_text())
    workers, servers = job.running("worker"), job.running("ps")
    os.kill(job.process.pid, signal.SIGSTOP)  # it would start the next master at once
    try:
        job.kill("master")
        with false_listener(split(where["address"])[1]) as received:
            job.wait_for(lambda: len(received) > 8)
    finally:
        os.kill(job.process.pid, signal.SIGCONT)
    told = b"".join(received)
    assert where["token"].encode() not in told
    assert b"torch_edl." not in told  # the name of a method: nothing was asked
    job.wait_for(lambda: job.running("worker") == workers)
    assert job.running("ps") == servers
    job.check()
