"""A real etcd for tests, on free ports of the loopback address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

_INSTALL = "apt-get install -y etcd-server"
_POLICY = Path("/usr/sbin/policy-rc.d")


def require_etcd() -> None:
    """Installs etcd in CI if it is missing; elsewhere skips the test."""
    if shutil.which("etcd"):
        return
    if not os.environ.get("CI"):
        pytest.skip(f"etcd is not installed: {_INSTALL}")
    # Several processes run tests.
    with open(Path(tempfile.gettempdir()) / "torch-edl-etcd-install", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which("etcd"):
            _install()


def _install() -> None:
    ours = not _POLICY.exists()
    if ours:  # Debian's service is not to start
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [*_INSTALL.split(), "-o", "DPkg::Lock::Timeout=60"]
    try:
        if subprocess.run(install, env=env, capture_output=True).returncode:
            subprocess.run(["apt-get", "update"], env=env, check=True)
            subprocess.run(install, env=env, check=True)
    finally:
        if ours:
            _POLICY.unlink()


class Etcd:
    """The process of an etcd that keeps its data in a folder.

    Args:
        folder: for data and output.
    """

    def __init__(self, folder: Path) -> None:
        require_etcd()
        self._folder = folder
        self._client, self._peer = _free_port(), _free_port()
        self.endpoint = f"127.0.0.1:{self._client}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, again on its data, and waits until it answers."""
        url, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        with open(self._folder / "etcd.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    "etcd", "--data-dir", str(self._folder / "etcd"),
                    "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", f"default={peer}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + 60
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail((self._folder / "etcd.log").read_text()[-3000:])
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.endpoint}/health", timeout=5) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _free_port() -> int:
    """Below the ports that the kernel gives away by itself: it is free after a restart, too."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
