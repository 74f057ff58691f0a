from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from master.runtime.clock import Clock
from master.runtime.effects import Effects
from master.runtime.job_files import EventFile
from master.runtime.local_node import LocalNode
from master.runtime.loop import run
from master.runtime.machines import Machines
from master.runtime.persistence import StateWriter
from master.runtime.service import Service
from master.runtime.store import SqliteStore, acquire
from master.state.job.job import ManagedJob
from master.state.workforce.fleet import Fleet
from master.state.workforce.servers import ServerCommand
from master.state.workforce.workforce import StopRequested
from tests.waiting import HANG_S, is_running, wait_for
from tests.warm import FORKS
from torch_edl.cli.__main__ import main
from torch_edl.config import ClusterConfig, JobConfig, Launch, TrainConfig
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.processes.signals import StopSignals
from torch_edl.wire import master_pb2 as pb

ROOT = Path(__file__).parents[4]
WORKER = Path(__file__).with_name("programs") / "worker.py"
FORKED = WORKER.with_name("forked.py")
STUB = Path(__file__).parents[2] / "node" / "programs" / "stub"
LATER_S = 100.0
TOKEN = "0123456789abcdef" * 2


class LocalMaster:
    """The real master of a script in a thread of this process, and what nodes have reported."""

    def __init__(self, folder: Path, launch: Launch, **cluster: Any) -> None:
        self._ready = threading.Event()
        self.reports: list[pb.NodeReportRequest] = []
        # Launchers must be used from the thread that made them.
        words = (folder, launch, cluster)
        self._thread = threading.Thread(target=self._run, args=words, daemon=True)
        self._thread.start()
        assert self._ready.wait(HANG_S)

    def _run(self, folder: Path, launch: Launch, cluster: dict[str, Any]) -> None:
        least, most = launch.min_nodes * launch.per_node, launch.max_nodes * launch.per_node
        config = JobConfig(
            name="j",
            kind="script",
            model_file="/train.py",
            train=TrainConfig(strategy="allreduce"),
            cluster=ClusterConfig(min_workers=least, max_workers=most, **cluster),
            launch=launch,
        )
        fleet = Fleet(
            ServerCommand(job="j"), workers=most, servers=1, launch=launch, is_scheduled=True
        )
        clock = Clock()
        self.job = ManagedJob(config, fleet, folder=folder / "master" / "job")
        self.job.start(clock())
        files = JobFolder("j")
        files.dir.mkdir(parents=True)
        lock = acquire(SqliteStore(files.dir / "state.sqlite"), "j")
        writer = StateWriter(lock, secret="s", superseded=pytest.fail)
        launcher = Machines(
            LocalNode(files, incarnation="i"), config, incarnation="i", preload=(), mark=None
        )
        self.service = service = Service(
            self.job, clock=clock, log_path=launcher.log_path, cores=1,
            nodes=launcher.nodes, writer=writer,
        )  # fmt: skip
        launcher.hears = service.hears
        self.nodes = launcher.nodes
        report = launcher.nodes.report

        def record(request: pb.NodeReportRequest, *rest: Any) -> pb.NodeReportResponse:
            self.reports.append(request)
            return report(request, *rest)

        launcher.nodes.report = record  # type: ignore[method-assign]
        self.port = int(service.listen(TOKEN).rpartition(":")[2])
        fleet.starts.env.update({ENV_MASTER: f"127.0.0.1:{self.port}", ENV_TOKEN: TOKEN})
        effects = Effects(token=TOKEN, preprocessing=folder / "none", claim=None)
        effects.start(service.apply)
        self._ready.set()
        over = run(
            service, launcher, effects, StopSignals(()), EventFile(files.events_file), clock,
            leaves=lambda: False,
        )  # fmt: skip
        assert over
        service.end_seen.wait(HANG_S)
        outcome = self.job.lifecycle.outcome
        assert outcome is not None
        launcher.nodes.over(outcome.reason, failed=outcome.state == "failed")
        launcher.stop_all(grace_s=0)
        service.close()
        writer.close(over=True)

    def texts(self) -> list[str]:
        """The events of the job."""
        with self.service.changed:
            return [event.text for event in self.job.lifecycle.log.after(0)]

    def ends(self) -> dict[int, pb.EndedProcess]:
        """The ends that nodes have reported, by pid."""
        pids = {each.id: each.pid for request in self.reports for each in request.running}
        ended = [each for request in self.reports for each in request.ended]
        return {pids[each.id]: each for each in ended}

    def codes(self) -> dict[int, int]:
        """The exit codes that nodes have reported, by pid."""
        return {pid: end.code for pid, end in self.ends().items()}

    def scale(self, workers: int) -> None:
        """Set the number of workers, as ``torch-edl scale`` does."""
        request = pb.ScaleRequest(min_workers=1, max_workers=workers)
        with self.service.changed:
            self.job.workforce.scale(request)

    def join(self, name: str) -> None:
        """Report once as the node of another machine."""
        report = pb.NodeReportRequest(node=name, incarnation="i", host=name, slots=9, address=name)
        self.nodes.report(report, lambda: True)

    def stop(self, reason: str) -> None:
        """Stop the job, as ``torch-edl stop`` does."""
        self.service.apply(StopRequested(reason))

    def close(self) -> None:
        """End the job if it runs."""
        if self._thread.is_alive():
            with self.service.changed:
                self.job.stop("the test is over", self.job.lifecycle.ended_at, at_once=True)
            self.service.end_seen.set()
            self._thread.join(HANG_S)
        assert not self._thread.is_alive()


class RunningNode:
    """``torch-edl run`` of the script that tells of itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def workers(self, count: int) -> dict[int, dict[str, str]]:
        """Environments by pid of those that run, once they are as many."""

        def running() -> dict[int, dict[str, str]] | None:
            found = {
                int(file.stem.split("-")[1]): json.loads(file.read_text())
                for file in self.folder.glob("*-*.json")
            }
            found = {pid: env for pid, env in found.items() if is_running(pid)}
            return found if len(found) == count else None

        return wait_for(running)  # type: ignore[no-any-return]

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once it has ended."""
        raise NotImplementedError

    def stderr_at_end(self, code: int) -> str:
        """Stderr, once it has ended with that exit code."""
        found, _, err = self.finish()
        assert found == code, err
        return err

    def end(self, code: int, local_rank: int | None = None) -> None:
        """Ends all workers, or the next one of a local rank."""
        name = "end" if local_rank is None else f"end-{local_rank}"
        part = self.folder / f"{name}.part"
        part.write_text(str(code))
        os.replace(part, self.folder / name)


def _run(later: Path, words: list[str], env: dict[str, str], out: Path, err: Path) -> None:
    """Run torch-edl; its node is ``LATER_S`` further in time once the file ``later`` exists."""
    from torch_edl.launch.script import script_node
    from torch_edl.node import node

    node.time = script_node.time = SimpleNamespace(  # type: ignore[attr-defined]
        monotonic=lambda: time.monotonic() + LATER_S * later.exists()
    )
    os.environ.clear()
    os.environ.update(env)
    for fd, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    sys.argv = ["torch-edl", *words]
    sys.exit(main(words))


class ForkedNode(RunningNode):
    """A node in a forked process."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str]) -> None:
        super().__init__(folder)
        self._output = (folder.with_name("out"), folder.with_name("err"))
        self.process = FORKS.Process(
            target=_run, args=(folder / "later", ["run", *words], env, *self._output)
        )
        self.process.start()

    def later(self) -> None:
        """Lets the clock of the node jump by ``LATER_S``."""
        (self.folder / "later").touch()

    def signal(self, number: int) -> None:
        """Sends a signal to the node."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self._output[1].read_text() if self._output[1].exists() else ""

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once it has ended."""
        self.process.join(HANG_S)
        assert self.process.exitcode is not None, "it has not ended"
        out, err = (path.read_text() for path in self._output)
        return self.process.exitcode, out, err


@pytest.fixture
def launch() -> Launch:
    """How the workers of the job are started; a test may have its own."""
    return Launch(per_node=2)


@pytest.fixture
def master(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalMaster]:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "master"))
    made = LocalMaster(tmp_path, launch)
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., ForkedNode]]:
    """Starts a node, of the test's own master unless ``alone``; words are options, ``script`` words
    for the script. A program that is forked imports a torch that takes no time."""
    started: list[ForkedNode] = []

    def start_node(
        *words: str,
        script: tuple[str, ...] = (),
        program: Path = WORKER,
        alone: bool = False,
    ) -> ForkedNode:
        folder = tmp_path / "workers"
        folder.mkdir()
        if not alone:
            words = (
                "--rdzv-endpoint",
                f"127.0.0.1:{request.getfixturevalue('master').port}",
                *words,
            )
        node = ForkedNode(
            folder,
            *words,
            str(program),
            *script,
            env={
                **os.environ,
                "TORCH_EDL_HOME": str(tmp_path / "home"),
                "TORCH_EDL_TOKEN": TOKEN,
                "WORKER_FOLDER": str(folder),
                "PYTHONPATH": f"{STUB}:{ROOT}" if program == FORKED else str(ROOT),
                "OMP_NUM_THREADS": "1",
            },
        )
        started.append(node)
        return node

    yield start_node
    for node in started:
        node.process.kill()
        node.process.join()
