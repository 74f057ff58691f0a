"""``torch-edl run --detach``: a client that runs without the terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

from torch_edl.cli.terminal import stdout
from torch_edl.files.durable import rename
from torch_edl.launch.jobs.folder import JobFolder, make_jobs_home
from torch_edl.wire import master_pb2 as pb

_INTERRUPTED = 130


class Detached:
    """Tells the process of the terminal that the job runs, when the first status arrives."""

    def __init__(self, pipe: int) -> None:
        self._pipe = open(pipe, "wb", buffering=0)  # noqa: SIM115 - close() closes it

    def update(self, status: pb.GetStatusResponse) -> None:
        """Report that the job runs, and close the pipe."""
        if not self._pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # the process of the terminal has ended
                self._pipe.write(b"1")
        self._pipe.close()


def detach(name: str) -> Detached:
    """Continue in a new process and session. Must be called before a thread is started.

    Args:
        name: name of the job that this command starts or joins.

    Returns:
        An object whose ``update`` receives each status; only the detached process returns.

    Raises:
        SystemExit: always, in the process of the terminal. The exit code is 0 after the first
            status of the job; otherwise it is that of the detached process, whose output is
            printed.
    """
    job = JobFolder(name)
    # The folder of the job does not exist yet.
    output = make_jobs_home() / f".{name}-{os.getpid()}.log"
    sys.stdout.flush()
    sys.stderr.flush()
    ready, told = os.pipe()
    # Readable for this user only, like the folder of a job.
    with open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        child = os.fork()
        if not child:
            os.close(ready)
            os.setsid()
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            return Detached(told)
    os.close(told)
    code = None
    try:
        # A read of zero bytes means that the detached process ended.
        if not os.read(ready, 1):
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        code = _INTERRUPTED
    if code is None:
        _say(job, child, output)
    else:
        sys.stderr.write(output.read_text("utf-8", "replace"))
        output.unlink()
    raise SystemExit(code or 0)


def _say(job: JobFolder, child: int, output: Path) -> None:
    name = job.name
    lines = [f"job {name} runs without this terminal"]
    if job.is_alive():
        # A script's job may have several clients.
        logs = (job.logs / f"client-{number}.log" for number in itertools.count())
        own = next(log for log in logs if not log.exists())
        rename(output, own)
        output = own
        lines += [
            f"see it: torch-edl status {name}, torch-edl logs {name} --follow",
            f"stop it: torch-edl stop {name}",
        ]
    else:
        lines += [
            "see and stop it on the machine of its master",
            f"take this machine out of it: kill {child}",
        ]
    for line in (*lines, f"what it would have shown here: {output}"):
        stdout().print(line, soft_wrap=True)
