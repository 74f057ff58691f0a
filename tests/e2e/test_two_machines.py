"""A script on two machines with servers on the first: two network namespaces, and an ear on the
cable and on the loopback interface. Nothing that it hears is in the clear."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.ring.network import Network
from tests.place import EDL
from tests.waiting import HANG_S
from torch_edl.wire.endpoint import free_port

SCRIPT = Path(__file__).parents[1] / "faults" / "counting_on_servers.py"
RECORDS, EPOCHS = 1000, 2
_ALL_PROTOCOLS = 3  # ETH_P_ALL
TLS_HANDSHAKE, TLS_DATA = b"\x16\x03\x01", b"\x17\x03\x03"
CURVE = b"CURVE\x00"


class Ear:
    """All that travels to or from an address."""

    def __init__(self, address: str) -> None:
        self._address = socket.inet_aton(address)
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        self._heard = bytearray()
        self._ended = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        self._socket.settimeout(0.1)
        while not self._ended:
            with contextlib.suppress(TimeoutError):
                frame = self._socket.recv(1 << 17)
                if self._address in frame[26:34]:  # source and destination of an IPv4 packet
                    self._heard += frame

    def close(self) -> bytes:
        """Return the messages that were received."""
        self._ended = True
        self._thread.join()
        self._socket.close()
        return bytes(self._heard)


class Machines:
    """The nodes of a job, one on this machine and one on the other."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self.network = folder, network
        self.gate, self.told = folder / "gate", folder / "told"
        self.told.mkdir()
        self.token = secrets.token_urlsafe(32)
        self.endpoint = f"{network.here}:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(
        self, machine: int, command: list[str] | None = None, *, token: str = ""
    ) -> subprocess.Popen[bytes]:
        """Starts a node: of the counting script on servers, or of another command."""
        words = command or self._counting()
        env = {
            **os.environ,
            "TORCH_EDL_HOME": str(self.folder / f"home{machine}"),
            "TORCH_EDL_TOKEN": token or self.token,
        }
        with open(self.log(machine), "w") as log:
            node = subprocess.Popen(
                self.network.command(words) if machine else words, env=env, stdout=log, stderr=log
            )
        self.nodes.append(node)
        return node

    def _counting(self) -> list[str]:
        words = [*EDL, "run", "--job-name", "two"]
        words += ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", self.endpoint]
        words += ["--ps", "2", "--durability", "replica"]
        words += [str(SCRIPT), str(self.told), str(self.gate), "--records", str(RECORDS)]
        return [*words, "--epochs", str(EPOCHS), "--delay", "0.004"]

    def log(self, machine: int) -> Path:
        return self.folder / f"node-{machine}.log"

    def status(self) -> dict[str, object]:
        file = self.folder / "home0" / "jobs" / "two" / "status.json"
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(file.read_text()))
        return {}

    def done(self) -> int:
        records = self.status().get("records") or {"done": 0}
        assert isinstance(records, dict)
        return int(records["done"])

    def servers(self) -> list[psutil.Process]:
        return [p for p in self._left() if "torch_edl.ps_server" in p.cmdline()]

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"in vain\n{self.report()}")
            time.sleep(0.03)

    def report(self) -> str:
        logs = [self.log(0), self.log(1), *self.folder.glob("home*/jobs/*/logs/**/*.log")]
        return "\n".join(f"==== {f}\n{f.read_text()[-3000:]}" for f in logs if f.is_file())

    def _left(self) -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["environ"])
            if (p.info["environ"] or {}).get("TORCH_EDL_HOME", "").startswith(str(self.folder))
        ]

    def close(self) -> None:
        for process in self._left():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for node in self.nodes:
            node.wait()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if why_not := Network.why_not():
        pytest.skip(why_not)
    with contextlib.closing(Network()) as network:
        made = Machines(tmp_path, network)
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_script_with_servers_on_the_first_machine(machines: Machines) -> None:
    ear = Ear(machines.network.here)
    try:
        nodes = [machines.start(0), machines.start(1)]
        machines.wait_for(lambda: machines.done() > 100)
        # Its successor fetches the replica from the other server.
        machines.servers()[0].send_signal(signal.SIGKILL)
        machines.wait_for(lambda: "ps-" in machines.log(0).read_text())
        machines.gate.touch()
        for node in nodes:
            assert node.wait(120) == 0, machines.report()
    finally:
        heard = ear.close()
    ends = [json.loads(file.read_text()) for file in machines.told.glob("counts-*.json")]
    assert sorted(end["rank"] for end in ends) == [0, 1], machines.report()
    for end in ends:
        assert not end["wrong"]
        assert end["total"] == [EPOCHS * RECORDS] * 3
    for expected in (TLS_HANDSHAKE, TLS_DATA, CURVE):
        assert expected in heard
    # The token, what each call of gRPC begins with, its methods, and names of tables.
    for secret in (machines.token.encode(), b"PRI * HTTP/2.0", b"torch_edl.", b"rows"):
        assert secret not in heard, secret


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rounds_of_torchrun(machines: Machines, tmp_path: Path) -> None:
    """Its nodes agree at the master, encrypted; the store of a round is torch's."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    )
    ear = Ear(machines.network.here)
    try:
        words = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "edl"]
        words += ["--rdzv-endpoint", machines.endpoint, "--rdzv-id", "rounds", "--nnodes", "2"]
        nodes = [machines.start(machine, [*words, str(script)]) for machine in (0, 1)]
        assert [node.wait(150) for node in nodes] == [0, 0], machines.report()
    finally:
        heard = ear.close()
    told = machines.log(0).read_text() + machines.log(1).read_text()
    assert "rank 0 of 2" in told
    assert "rank 1 of 2" in told
    assert TLS_DATA in heard
    for secret in (machines.token.encode(), b"PRI * HTTP/2.0", b"torch_edl.Rounds"):
        assert secret not in heard, secret


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_with_another_token_ends_at_once_and_harms_nobody(machines: Machines) -> None:
    first = machines.start(0)
    machines.wait_for(lambda: "waiting for machines" in machines.log(0).read_text())
    stranger = machines.start(1, token=secrets.token_urlsafe(32))
    assert stranger.wait(HANG_S) != 0
    assert "the certificate of what listens there is not of TORCH_EDL_TOKEN" in (
        text := machines.log(1).read_text()
    ), text
    weak = machines.start(1, token="only for this test")
    assert weak.wait(HANG_S) == 2
    assert "openssl rand -base64 32" in machines.log(1).read_text()
    assert first.poll() is None
    machines.gate.touch()
    second = machines.start(1)
    assert [first.wait(150), second.wait(150)] == [0, 0], machines.report()
