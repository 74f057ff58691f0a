"""Jobs as a user starts them, and the means to hurt them.

A job that is over before it is hurt proves nothing, so its data stop: who comes to a certain
record waits there until :meth:`Job.go_on`. Everybody else trains on, and is hurt in full run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from tests.place import EDL, ROOT
from tests.waiting import COMMAND_S, HANG_S
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

MODEL = Path(__file__).with_name("counting_model.py")
COUNTING = ROOT / "examples" / "counting"
TASKS = ["--batch-size", "8", "--records-per-task", "64"]
KEEP = ["--checkpoint-every", "20", "--checkpoint-dir", "DIR"]
_OVER = "the last fault is over"


def _load(name: str) -> ModuleType:
    """A program of the counting example."""
    spec = importlib.util.spec_from_file_location(name, COUNTING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare, check = _load("prepare"), _load("check")


def _words_of(pid: int, file: str) -> list[str]:
    """What ``/proc`` says of a process; of one that has ended, nothing."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    """0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process, unless that has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Job:
    """A running ``torch-edl run``.

    Args:
        name: of the job.
        command: of a client that reads until ``gate`` exists.
        workers: a word of the command line of its workers.
        more: environment.
    """

    def __init__(
        self, folder: Path, name: str, command: list[str], workers: str, **more: str
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.gate = self._gate(folder, name)
        self.env = {**os.environ, "TORCH_EDL_HOME": str(folder / "home"), **more}
        self._words = {"worker": workers, "ps": "torch_edl.ps_server", "master": "master"}
        self.folder = Path(self.env["TORCH_EDL_HOME"]) / "jobs" / name
        self._stub: Stub | None = None
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    @staticmethod
    def _gate(folder: Path, name: str) -> Path:
        return folder / f"{name}-goes-on"

    def go_on(self) -> None:
        """Let the data continue."""
        self.gate.touch()

    def status(self) -> pb.GetStatusResponse:
        """Return the status from the master; empty while there is none."""
        try:
            if self._stub is None:
                where = json.loads((self.folder / "master.json").read_text())
                self._stub = Stub(services.MASTER, where["address"], where["token"])
            status: pb.GetStatusResponse = self._stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
            return status
        except (OSError, grpc.RpcError):
            return pb.GetStatusResponse()

    def done(self) -> int:
        """Committed records."""
        return self.status().records.done

    def processes(self) -> dict[int, list[str]]:
        """Command lines of all processes that live now, found without asking the job."""
        home = f"TORCH_EDL_HOME={self.env['TORCH_EDL_HOME']}"
        every = sorted(int(each.name) for each in Path("/proc").glob("[0-9]*"))
        return {
            pid: _words_of(pid, "cmdline") for pid in every if home in _words_of(pid, "environ")
        }

    def pids(self, role: str) -> list[int]:
        """Processes of that role that live now, without the client. What a process has forked to
        start another program has the same command line until then, and is none."""
        word, found = self._words[role], self.processes()
        return [
            pid
            for pid, words in found.items()
            if word in words and pid != self.process.pid and found.get(_parent_of(pid)) != words
        ]

    def running(self, role: str) -> set[int]:
        """The pids of processes that run, as the job tells."""
        found = self.status().processes
        return {p.pid for p in found if p.role == role and p.state == "running"}

    def kill(self, role: str, count: int = 1) -> None:
        """Send SIGKILL to some processes of a role."""
        for pid in self.pids(role)[:count]:
            os.kill(pid, signal.SIGKILL)

    def kill_master(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """SIGKILL, and a word of the next one."""
        (pid,) = self.pids("master")
        os.kill(pid, signal.SIGKILL)
        meanwhile()
        self.wait_for(lambda: self.status().processes and self.status().processes[0].pid != pid)

    def pause_master(self, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT so much later."""
        (pid,) = self.pids("master")
        os.kill(pid, signal.SIGSTOP)
        time.sleep(pause_s)
        os.kill(pid, signal.SIGCONT)

    def require_same_processes(self, before: set[int]) -> None:
        """None of them ended, none was started, and nothing was rolled back."""
        assert set(self.pids("worker") + self.pids("ps")) == before, self.report()
        assert self.status().rolled_back.times == 0, self.report()

    def wait_for(self, condition: Callable[[], object], timeout_s: float = HANG_S) -> None:
        """Until it is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(f"it did not come about:\n{self.report()}")
            time.sleep(0.03)

    def finish(self, timeout_s: float = COMMAND_S) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self.report()}")

    def end_well(self) -> None:
        """The data go on, and the exit code is 0."""
        self.go_on()
        assert self.finish() == 0, self.report()

    def rolled_back(self) -> int:
        """How often the model of the ended job went back to a checkpoint."""
        noted = json.loads((self.folder / "status.json").read_text())
        return int(noted["rolled_back"]["times"])

    def report(self) -> str:
        """The logs, for who looks for what went wrong."""
        logs = sorted((self.folder / "logs").glob("*"))
        return "\n".join(
            f"==== {f.name}\n{f.read_text()[-3000:]}" for f in [self.log, *logs] if f.is_file()
        )

    def close(self) -> None:
        """Nothing outlives its job, whatever the test did to it."""
        if self._stub is not None:
            self._stub.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + HANG_S
        while left := self.processes():
            if time.monotonic() > deadline:
                for pid in left:
                    send(pid, signal.SIGKILL)
                pytest.fail(f"orphans {left}\n{self.report()}")
            time.sleep(0.05)


class Storming:
    """A storm over a job."""

    verdict: dict[str, Any]
    """What `torch-edl chaos` reported, once the storm is over."""


class ModelJob(Job):
    """A job of the counting model; its data stop at the last record."""

    def __init__(
        self,
        folder: Path,
        name: str,
        records: int,
        flags: list[str],
        delay_s: float,
        quorum: int,
        data: str,
        model: Path = MODEL,
    ) -> None:
        self._data, self._quorum = folder, quorum
        self.output = folder / f"{name}-output"
        self.summary_file = folder / f"{name}.json"
        command = [
            *EDL, "run", str(model), "--data", data, "--job-name", name,
            "--output", str(self.output), "--summary", str(self.summary_file), *flags,
            "--", str(records - 1), str(self._gate(folder, name)), "--delay", str(delay_s),
            "--quorum", str(quorum),
        ]  # fmt: skip
        super().__init__(folder, name, command, "torch_edl.training.worker")

    def scale(self, option: str, number: int) -> None:
        """`torch-edl scale`, once a master takes it."""
        words = [*EDL, "scale", self.name, option, str(number)]
        self.wait_for(lambda: not subprocess.run(words, env=self.env, timeout=HANG_S).returncode)

    @contextlib.contextmanager
    def storm(self, *flags: str) -> Iterator[Storming]:
        """`torch-edl chaos`, beside the body. The data go on once the last fault is over; the
        promise must hold."""
        words, events = [*EDL, "chaos", self.name, *flags, "--json"], self.folder / "events.jsonl"
        storming = Storming()
        with subprocess.Popen(
            words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as chaos:
            yield storming
            self.wait_for(lambda: _OVER in events.read_text() or chaos.poll() is not None, HANG_S)
            self.go_on()
            out, told = chaos.communicate(timeout=HANG_S)
        assert chaos.returncode == 0, f"{flags}\n{out}{told}\n{self.report()}"
        storming.verdict = json.loads(out)

    def summary(self) -> dict[str, Any]:
        """What `--summary` wrote."""
        return json.loads(self.summary_file.read_text())  # type: ignore[no-any-return]

    def check(self, *, rolled_back: int | None = None) -> None:
        """It ends well, every record was counted exactly once, and the model went back to a
        checkpoint so often; None: any number of times."""
        self.end_well()
        self.check_counts()
        assert rolled_back in (None, self.rolled_back()), self.report()

    def check_counts(self) -> None:
        """The output has counted every record exactly once, by dense and by rows."""
        wrong = check.problems(self.output, self._data, quorum=self._quorum)
        assert not wrong, "\n".join([*wrong[:20], self.report()])


@pytest.fixture
def jobs() -> Iterator[contextlib.ExitStack]:
    """Where jobs are entered that end with the test."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def start_job(tmp_path: Path, jobs: contextlib.ExitStack) -> Callable[..., ModelJob]:
    """``start_job(records, *flags)``; a flag DIR is a folder for checkpoints. ``data``
    holds the numbers below ``records`` in another way than files."""

    def start(
        records: int,
        *flags: str,
        delay_s: float = 0.01,
        name: str = "count",
        quorum: int = 1,
        data: str = "",
        model: Path = MODEL,
    ) -> ModelJob:
        prepare.write(tmp_path, records=records, files=3)
        given = [str(tmp_path / "checkpoints") if flag == "DIR" else flag for flag in flags]
        where = data or str(tmp_path / "data-*.parquet")
        job = ModelJob(tmp_path, name, records, given, delay_s, quorum, where, model)
        return jobs.enter_context(contextlib.closing(job))

    return start
