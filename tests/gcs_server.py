"""A server of the interface of Google Cloud Storage for tests, in a process of its own on loopback:
gcp-storage-emulator, which keeps objects in its memory."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

_PACKAGES = ("gcp_storage_emulator", "gcsfs")


def require_gcs() -> None:
    """Skips the test where the packages are missing; `make install` installs them."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"not installed: pip install {' '.join(missing)}")
    assert not missing, missing


class GcsServer:
    """The process of a server.

    Attributes:
        environment: variables with which gcsfs finds it.
    """

    def __init__(self, folder: Path) -> None:
        require_gcs()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": self.url,
            # Otherwise gcsfs looks for credentials to ask of which type a bucket is.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        words = ["start", "--host", "127.0.0.1", "--port", str(port), "--in-memory"]
        with open(folder / "gcs.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gcp_storage_emulator", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + 120
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail((folder / "gcs.log").read_text()[-3000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
