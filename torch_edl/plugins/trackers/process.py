"""The process of a tracker, and the calls of its run.

    python -m torch_edl.plugins.trackers.process MODULE CLASS

Each line of standard input is a call of a :class:`Run` as JSON, and a line of standard output is
its answer. The process ends when its input is closed. If the thread that started the process dies,
the kernel kills the process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import IO, Any

from torch_edl.errors import EdlError, describe_error
from torch_edl.plugins.trackers.run import Run
from torch_edl.processes import exec_child
from torch_edl.processes.process_group import ChildGroup
from torch_edl.processes.signals import describe_exit

_METHODS = ("open", "log", "log_model", "close")


class TrackerError(EdlError):
    """The tracker reported an error, or its process ended."""


class RunProcess:
    """A run in a process of its own. All calls wait for their answer, and come from one thread."""

    def __init__(self, kind: type[Run]) -> None:
        command = [sys.executable, "-P", "-m", __name__, kind.__module__, kind.__name__]
        self._process = subprocess.Popen(
            exec_child.words(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal ends the job, and then the run
        )
        self._leader = ChildGroup(self._process)

    def call(self, method: str, *args: Any) -> Any:
        """Return the result of a method of the run.

        Raises:
            TrackerError: the method raised an exception, or the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([method, *args]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            ended = describe_exit(self._process.wait())
            raise TrackerError(f"the process of the tracker ended ({ended})")
        answer = json.loads(line)
        if "error" in answer:
            raise TrackerError(answer["error"])
        return answer["result"]

    def end(self) -> None:
        """Close the input of the process, and wait for its end."""
        self._process.communicate()


def serve(run: Run, calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer calls until the input ends."""
    for line in calls:
        method, *args = json.loads(line)
        assert method in _METHODS
        try:
            answer = {"result": getattr(run, method)(*args)}
        except (Exception, SystemExit) as error:
            answer = {"error": describe_error(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve the run of the class that the arguments name."""
    calls, answers = (os.fdopen(os.dup(fd), mode) for fd, mode in ((0, "rb"), (1, "wb")))
    # The library may ask for a password, print, or start processes that inherit both files.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    kind = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
    serve(kind(), calls, answers)


if __name__ == "__main__":
    main()
