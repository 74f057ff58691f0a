"""A stranger: a process of another user of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

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


# Begins HTTP/2 as a server does, and prints what each client sends until that is silent.
_LISTENS = """
os.set_blocking(0, False)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
server.settimeout(0.1)
print("listens", flush=True)
while True:
    try:
        if os.read(0, 1) == b"":
            break
    except BlockingIOError:
        pass
    try:
        client = server.accept()[0]
    except TimeoutError:
        continue
    client.settimeout(0.5)
    try:
        client.sendall(bytes(3) + b"\\x04" + bytes(5))
        while received := client.recv(65536):
            print(received.hex(), flush=True)
    except OSError:
        pass
    client.close()
"""


@contextlib.contextmanager
def false_listener(port: int) -> Iterator[list[bytes]]:
    """A stranger who has taken a port of the loopback address, and what it has received there."""
    received: list[bytes] = []
    with as_stranger(_LISTENS, str(port)) as stranger:
        assert stranger.stdin is not None
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "listens\n"
        lines = stranger.stdout
        reader = threading.Thread(
            target=lambda: [received.append(bytes.fromhex(line)) for line in lines]
        )
        reader.start()
        try:
            yield received
        finally:
            stranger.stdin.close()
            reader.join()
