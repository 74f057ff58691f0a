"""A real PostgreSQL for tests, on a free port of the loopback address."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.debian_package import require_package
from torch_edl.wire.endpoint import free_port

USER, PASSWORD = "edl", "s3cret/pass@word"


def _programs() -> Path | None:
    """The folder of the newest one that is installed: Debian has none of them in the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


class Postgres:
    """The process of a PostgreSQL, with one user, who needs a password."""

    def __init__(self) -> None:
        require_package("postgresql", lambda: _programs() is not None)
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="edl-postgres-"))
        # It refuses to run as root. The PATH of a user may lack the folders of runuser.
        places = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        runuser = shutil.which("runuser", path=places) or "runuser"
        self._as_user = [runuser, "-u", "postgres", "--"] if os.getuid() == 0 else []
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if self._as_user:
            shutil.chown(self._folder, "postgres")
            shutil.chown(password, "postgres")
        subprocess.run(
            [*self._as_user, str(programs / "initdb"), "-D", str(self._folder / "data"),
             "-A", "scram-sha-256", "-U", USER, "--pwfile", str(password), "--no-sync"],
            check=True, capture_output=True, cwd="/",
        )  # fmt: skip
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """Without the password: it comes from PGPASSWORD."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Starts it, again on its data, and waits until it answers."""
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user, str(self._programs / "postgres"), "-D",
                 str(self._folder / "data"), "-p", str(self.port), "-k", str(self._folder),
                 "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        ready = [str(self._programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        end = time.monotonic() + 60
        while subprocess.run(ready, capture_output=True).returncode:
            if self._process.poll() is not None or time.monotonic() > end:
                pytest.fail((self._folder / "log").read_text()[-3000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """At once, as at the loss of its machine; connections break."""
        pid = (self._folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        subprocess.run(["kill", "-QUIT", pid], check=True)
        self._process.wait()

    def remove(self) -> None:
        """Stops it and deletes its data."""
        self.stop()
        shutil.rmtree(self._folder)
