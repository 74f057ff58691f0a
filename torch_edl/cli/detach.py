"""``torch-edl run --detach``: the client goes on without the terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from torch_edl import job_folder
from torch_edl.cli.terminal import stdout

_POLL_S = 0.05
_INTERRUPTED = 130


def detach(name: str) -> int | None:
    """Goes on in a process and a session of its own; must be called before a thread is started.

    Args:
        name: of the job that is about to start.

    Returns:
        None in that process. In this one the exit code: 0 as soon as the master listens; else that
        of the other process, whose words are shown.
    """
    job = job_folder.Job(name)
    job.dir.parent.mkdir(parents=True, exist_ok=True)
    # The folder of the job is not there yet.
    output = job.dir.parent / f".{name}-{os.getpid()}.log"
    earlier = job.master()
    sys.stdout.flush()
    sys.stderr.flush()
    with open(output, "wb") as file:
        child = os.fork()
        if not child:
            os.setsid()
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            return None
    try:
        code = _wait(child, job, earlier)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        code = _INTERRUPTED
    if code is not None:
        sys.stderr.write(output.read_text("utf-8", "replace"))
        output.unlink()
        return code
    log = job.dir / job_folder.LOGS / "client-0.log"
    os.replace(output, log)
    _say(name, log)
    return 0


def _wait(child: int, job: job_folder.Job, earlier: job_folder.MasterAddress | None) -> int | None:
    """Until the master listens (None), or the other process has ended (its exit code)."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1
        if job.master() != earlier and job.is_alive():
            return None
        time.sleep(_POLL_S)


def _say(name: str, log: Path) -> None:
    console = stdout()
    for line in (
        f"job {name} runs without this terminal",
        f"see it: torch-edl status {name}, torch-edl logs {name} --follow",
        f"stop it: torch-edl stop {name}",
        f"what it would have shown here: {log}",
    ):
        console.print(line, soft_wrap=True)
