"""Run a command that ends when the process that started it ends.

    python -I -S exec_child.py PARENT_PID SIGNAL COMMAND [ARG...]

The kernel sends the signal (PR_SET_PDEATHSIG), so the command ends even inside a torch kernel. The
setting survives ``exec``. The kernel sends the signal when the *thread* that forked ends, so
children must be started from the main thread. This file runs as an isolated script, which takes
10 ms and imports no other module of this package.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def words(command: list[str], number: int = signal.SIGKILL) -> list[str]:
    """Return the command line of a child that gets a signal when this process ends.

    Args:
        number: the signal. SIGKILL ends the child whatever it is doing. The master gets SIGTERM
            instead, so that it can stop its own children first.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number)), *command]


def end_with(parent: int, number: int) -> None:
    """Let the kernel send a signal to this process when its parent ends. If the parent has already
    ended, the signal is sent now. This process does not ignore or block the signal."""
    if number != signal.SIGKILL:  # a child inherits ignored and blocked signals
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG, {number}): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # the parent ended before prctl was called
        os.kill(os.getpid(), number)


def main() -> None:
    """Set the signal, then replace this process by the command."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    end_with(parent, number)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
