"""A stranger: a process of another user of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STRANGER = 65534
"""A user that owns nothing here."""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


# The interpreter may lie where the other user cannot read it: all is imported before.
_BECOME = f"""
import os, shutil, socket, sys, time
os.setgroups([])
os.setresgid(*[{STRANGER}] * 3)
os.setresuid(*[{STRANGER}] * 3)
"""


def as_stranger(program: str, *args: str) -> subprocess.Popen[str]:
    """Starts a program of Python, for which ``os``, ``shutil``, ``socket``, ``sys`` and ``time``
    are imported, and which can import nothing else."""
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _BECOME + program, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={},
    )


def run_as_stranger(program: str, *args: str) -> str:
    """Runs a program to its end, and returns its output."""
    with as_stranger(program, *args) as process:
        output, _ = process.communicate("")
    assert process.returncode == 0, output
    return output
