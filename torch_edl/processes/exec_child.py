"""Becomes a command that ends with the process that started it.

    python -I -S exec_child.py PARENT_PID SIGNAL COMMAND [ARG...]

The kernel sends the signal, so it works in the middle of a torch kernel too, and what the kernel
was told survives ``exec``. It does so when the *thread* that forked ends: children are started
from the main thread. Run as a file, isolated: it costs 10 ms, and imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def words(command: list[str], number: int = signal.SIGKILL) -> list[str]:
    """The command line of a child of this process that gets a signal when this process is gone.

    Args:
        number: SIGKILL ends the child whatever it is doing; the master gets SIGTERM, so that it
            can stop the others first.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *command]


def main() -> None:
    """Sets the signal, then replaces this process by the command."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if number != signal.SIGKILL:  # a parent that ignores or blocks it hands that down
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG, {number}): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before the kernel was told
        os.kill(os.getpid(), number)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
