"""A server of an object store for tests, in a process of its own on loopback."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.waiting import HANG_S


def require_packages(names: Sequence[str]) -> None:
    """Skips the test where one is missing; `make install-all` installs them."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"not installed: pip install {' '.join(missing)}")
    assert not missing, missing


class ObjectServer:
    """The process of a server that keeps objects in its memory; it answers.

    Args:
        words: after ``python -m``.
        log: what it writes.
    """

    def __init__(self, words: Sequence[str], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        end = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail(log.read_text()[-3000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                self.url, timeout=HANG_S
            )
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def requests(self) -> list[str]:
        """What the server was asked for: method and path of each request."""
        found = re.findall(r"((?:GET|HEAD|PUT|POST|DELETE) \S+) HTTP/", self._log.read_text())
        return [str(request) for request in found]

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
