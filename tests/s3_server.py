"""A real S3-compatible server for tests: moto's, in a process of its own on loopback."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

_PACKAGES = ("moto", "flask", "s3fs")


def require_s3() -> None:
    """Skips the test where the packages are missing; `make install` installs them."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"not installed: pip install {' '.join(missing)}")
    assert not missing, missing


class S3Server:
    """The process of a server that keeps objects in its memory.

    Attributes:
        environment: variables with which clients, such as s3fs, find it and sign their requests.
    """

    def __init__(self, folder: Path) -> None:
        require_s3()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "a-key-of-tests",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._log = folder / "s3.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(self._log.read_text()[-3000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def requests(self) -> list[str]:
        """What the server was asked for: method and path of each request."""
        lines = self._log.read_text().splitlines()
        return [line.split('"')[1] for line in lines if '] "' in line]

    def pause(self) -> None:
        """SIGSTOP: it answers nobody."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it answers what waited."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
