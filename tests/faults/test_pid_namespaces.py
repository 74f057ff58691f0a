"""Two machines that share their folders and their network, but not their pids: containers with the
network of the host and a common folder for temporary files. Processes of both have equal pids."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.place import EDL
from tests.waiting import wait_for
from torch_edl.wire.endpoint import free_port

SCRIPT = Path(__file__).with_name("counting_on_servers.py")
SAME_PID = Path(__file__).with_name("same_pid.py")
PID = 20_000
RECORDS, EPOCHS = 65_536, 2
# The host names differ, because the master tells nodes apart by host name and pid.
NAMESPACE = ("unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
NAMED = ("sh", "-c", 'hostname "$0"; exec "$@"')


def why_not() -> str:
    """Return why this machine has no PID namespaces; empty if it has them."""
    probe = [sys.executable, str(SAME_PID), str(PID), "-c", ""]
    try:
        done = subprocess.run([*NAMESPACE, *NAMED, "probe", *probe], capture_output=True, text=True)
    except FileNotFoundError:
        return "there is no command unshare"
    return f"no PID namespaces here: {done.stderr.strip()}" if done.returncode else ""


class Containers:
    """The nodes of a job, each in its own namespace; the first one hosts master and server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, folder / "told"
        self.told.mkdir()
        (folder / "gate").touch()
        self.env = {**os.environ, "TORCH_EDL_TOKEN": secrets.token_urlsafe(32)}
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> None:
        """Start a node in a new namespace, with one worker whose pid there is ``PID``."""
        words = [*NAMESPACE, *NAMED, name, *EDL, "run", "--job-name", "two", "--nnodes", "1:2"]
        words += ["--nproc-per-node", "1", "--rdzv-endpoint", self.endpoint, "--ps", "1"]
        words += [str(SAME_PID), str(PID), str(SCRIPT), str(self.told), str(self.folder / "gate")]
        # Frames of small batches are sent in any case.
        words += ["--records", str(RECORDS), "--epochs", str(EPOCHS), "--batch-size", "512"]
        words += ["--meet", "2"]
        env = {**self.env, "TORCH_EDL_HOME": str(self.folder / f"home-{name}")}
        with open(self.folder / f"{name}.log", "w") as log:
            self.nodes.append(subprocess.Popen(words, env=env, stdout=log, stderr=log))

    def codes(self) -> list[int | None]:
        """Return the exit codes of the nodes, None for one that runs."""
        return [node.poll() for node in self.nodes]

    def report(self) -> str:
        """Return the ends of all logs."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("home-*/jobs/*/logs/**/*.log")]
        return "\n".join(f"==== {f}\n{f.read_text()[-3000:]}" for f in logs if f.is_file())

    def close(self) -> None:
        for node in self.nodes:
            node.send_signal(signal.SIGKILL)  # and with it, its namespace
            node.wait()


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    if reason := why_not():
        needed = os.environ.get("CI") and os.geteuid() == 0
        pytest.fail(reason) if needed else pytest.skip(reason)
    with contextlib.closing(Containers(tmp_path)) as made:
        yield made


@pytest.mark.timeout(300)
def test_workers_with_equal_pids_count_each_record_once(containers: Containers) -> None:
    containers.start("first")
    # Its worker shares memory with the server, and waits for the other worker.
    wait_for(lambda: list(containers.told.glob("*.here")), containers.report)
    containers.start("second")
    wait_for(lambda: None not in containers.codes() or any(containers.codes()), containers.report)
    assert containers.codes() == [0, 0], containers.report()
    ends = [json.loads(file.read_text()) for file in containers.told.glob("counts-*.json")]
    assert len(ends) == 2, containers.report()
    for end in ends:
        assert not end["wrong"], containers.report()
        assert end["total"] == [EPOCHS * RECORDS] * 3
