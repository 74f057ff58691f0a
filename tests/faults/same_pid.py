"""Runs a script in a child process of a chosen pid: ``same_pid.py PID SCRIPT ARGS``.

The process must be root in its PID namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

import torch_edl  # noqa: F401  (the command line checks that a script with servers imports it)

_CLONE3 = 435  # the number of the system call on all architectures


def fork_as(pid: int) -> int:
    """Fork a child with this pid. Returns 0 in the child, as :func:`os.fork`.

    The process must have one thread, and the child must call exec.

    Raises:
        OSError: the kernel refused, or the pid is in use.
    """
    wanted = ctypes.c_int(pid)
    # struct clone_args of linux/sched.h
    args = struct.pack("10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1)
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(_CLONE3, args, ctypes.c_size_t(len(args))))
    if found < 0:
        raise OSError(ctypes.get_errno(), f"clone3 with pid {pid}")
    return found


if __name__ == "__main__":
    child = fork_as(int(sys.argv[1]))
    if not child:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
