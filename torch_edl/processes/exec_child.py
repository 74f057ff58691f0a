"""Becomes a command that ends with the process that started it: for user scripts.

    python -I -S exec_child.py PARENT_PID COMMAND [ARG...]

A script does not call :func:`torch_edl.processes.child.follow_parent` itself, and what the kernel
was told survives ``exec``. Run as a file, isolated: it costs 10 ms, and imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Sets the signal, then replaces this process by the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
