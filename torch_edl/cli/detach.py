"""``torch-edl run --detach``: a client that runs without the terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

from torch_edl.cli.terminal import stdout
from torch_edl.files import rename
from torch_edl.launch.jobs.folder import JobFolder, make_jobs_home
from torch_edl.wire import master_pb2 as pb

_INTERRUPTED = 130


class Detached:
    """An observer in the detached process: tells the process of the terminal that the job runs."""

    def __init__(self, pipe: int) -> None:
        self._pipe = open(pipe, "wb", buffering=0)  # noqa: SIM115 - close() closes it

    def update(self, status: pb.GetStatusResponse) -> None:
        """The first status has come: the job runs."""
        if not self._pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # the process of the terminal is gone
                self._pipe.write(b"1")
        self.close()

    def close(self) -> None:
        """Closes the pipe to the process of the terminal."""
        self._pipe.close()


def detach(name: str) -> Detached:
    """Continues in a process and a session of its own; to be called before a thread is started.

    Args:
        name: of the job that this command starts or joins.

    Returns:
        In the detached process: an observer of the job.

    Raises:
        SystemExit: in the process of the terminal. 0 after the first status of the job, else the
            exit code of the detached process, whose output is then printed.
    """
    job = JobFolder(name)
    # The folder of the job is not there yet.
    output = make_jobs_home() / f".{name}-{os.getpid()}.log"
    sys.stdout.flush()
    sys.stderr.flush()
    ready, told = os.pipe()
    # For this user alone, as the folder of a job.
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
        # The pipe ends without a byte if the detached process ends.
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
        # Several clients may take part in a script's job.
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
