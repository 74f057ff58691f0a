"""A real etcd for tests, on free ports of the loopback address."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.debian_package import require_package
from tests.waiting import HANG_S
from torch_edl.wire.endpoint import free_port


def require_etcd() -> None:
    """Installs etcd in CI if it is missing; elsewhere skips the test."""
    require_package("etcd-server", lambda: shutil.which("etcd") is not None)


class Etcd:
    """The process of an etcd that keeps its data in a folder.

    Args:
        folder: for data and output.
        tls: it speaks with those only that show a certificate of ``ca.pem`` in the folder, as
            ``client.pem`` and ``client.key`` are.
    """

    def __init__(self, folder: Path, *, tls: bool = False) -> None:
        require_etcd()
        self._folder = folder
        self.url_scheme = "https" if tls else "http"
        self._context = _certified(folder) if tls else None
        self._client, self._peer = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{self._client}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, again on its data, and waits until it answers."""
        url, peer = f"{self.url_scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer}"
        with open(self._folder / "etcd.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    "etcd", "--data-dir", str(self._folder / "etcd"),
                    "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", f"default={peer}", *self._certificates(),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        end = time.monotonic() + 60
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail((self._folder / "etcd.log").read_text()[-3000:])
            time.sleep(0.05)

    def _certificates(self) -> list[str]:
        if self._context is None:
            return []
        words = [
            "--bcrypt-cost",
            "4",
            "--client-cert-auth",
            "--trusted-ca-file",
            str(self._folder / "ca.pem"),
        ]
        words += ["--cert-file", str(self._folder / "server.pem")]
        return [*words, "--key-file", str(self._folder / "server.key")]

    def _is_healthy(self) -> bool:
        try:
            return b'"true"' in self._open("/health")
        except OSError:
            return False

    def _open(self, path: str, body: object = None) -> bytes:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._context))
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url_scheme}://{self.endpoint}{path}", content)
        with urllib.request.build_opener(*handlers).open(request, timeout=HANG_S) as answer:
            found: bytes = answer.read()
            return found

    def require_password(self, password: str) -> None:
        """From now on only the user ``root`` with that password may read or write."""
        self._open("/v3/auth/user/add", {"name": "root", "password": password})
        self._open("/v3/auth/role/add", {"name": "root"})
        self._open("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self._open("/v3/auth/enable", {})

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _certified(folder: Path) -> ssl.SSLContext:
    """Writes an authority, and certificates of the server and of a client; returns what a client
    connects with."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=authority",
            "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-extfile", "names")  # fmt: skip
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    return context
