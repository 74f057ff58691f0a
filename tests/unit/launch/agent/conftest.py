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

from tests.waiting import HANG_S, is_running, wait_for
from tests.warm import FORKS
from torch_edl.cli.__main__ import main
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.server import serve

ROOT = Path(__file__).parents[4]
WORKER = Path(__file__).with_name("programs") / "worker.py"
FORKED = WORKER.with_name("forked.py")
STUB = Path(__file__).parents[2] / "node" / "programs" / "stub"
LATER_S = 100.0
TOKEN = "0123456789abcdef" * 2


class ScriptedMaster:
    """Answers agents over real gRPC as a test says, and keeps what they told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[pb.AgentReportRequest] = []
        self.answer = pb.AgentReportResponse(nodes=1)
        self.stops: list[str] = []
        self.finishes = False
        """True if the job has finished, and agents hear of it once a stop is asked for."""
        handlers = dict.fromkeys(services.methods(services.MASTER), _refuse)
        handlers |= {
            "AgentReport": self._report,
            "Stop": self._stop,
            "GetStatus": lambda request, _: pb.GetStatusResponse(job="scripted"),
        }
        self._server, self.port = serve(
            services.MASTER, handlers, address="127.0.0.1:0", token=TOKEN, threads=8
        )

    @property
    def told(self) -> list[pb.AgentReportRequest]:
        with self._lock:
            return list(self._told)

    def ends(self) -> dict[int, int]:
        """The codes of the workers whose end was told, by pid."""
        workers = [worker for request in self.told for worker in request.workers]
        return {worker.pid: worker.code for worker in workers if worker.exited}

    def close(self) -> None:
        self._server.stop(grace=None).wait()

    def _report(self, request: pb.AgentReportRequest, _: Any) -> pb.AgentReportResponse:
        with self._lock:
            self._told.append(request)
        answer = pb.AgentReportResponse()
        answer.CopyFrom(self.answer)
        answer.master_addr, answer.master_port = request.address, request.port
        ends = request.done and not self.finishes
        answer.over = answer.over or ends or bool(request.error) or bool(self.stops)
        if self.stops and not self.finishes:
            answer.error = f"the job was stopped: {self.stops[0]}"
        return answer

    def _stop(self, request: pb.StopRequest, _: Any) -> pb.StopResponse:
        self.stops.append(request.reason)
        return pb.StopResponse()


def _refuse(request: Any, _: Any) -> None:
    raise UsageError(f"{type(request).__name__}: agents report, ask for the status, and stop jobs")


class RunningAgent:
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
    """Run torch-edl; its agent is ``LATER_S`` further in time once the file ``later`` exists."""
    from torch_edl.launch.agent import agent

    agent.time = SimpleNamespace(  # type: ignore[attr-defined]
        monotonic=lambda: time.monotonic() + LATER_S * later.exists()
    )
    os.environ.clear()
    os.environ.update(env)
    for fd, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    sys.argv = ["torch-edl", *words]
    sys.exit(main(words))


class ForkedAgent(RunningAgent):
    """An agent in a forked process."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str]) -> None:
        super().__init__(folder)
        self._output = (folder.with_name("out"), folder.with_name("err"))
        self.process = FORKS.Process(
            target=_run, args=(folder / "later", ["run", *words], env, *self._output)
        )
        self.process.start()

    def later(self) -> None:
        """Lets the clock of the agent jump by ``LATER_S``."""
        (self.folder / "later").touch()

    def signal(self, number: int) -> None:
        """Sends a signal to the agent."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once it has ended."""
        self.process.join(HANG_S)
        assert self.process.exitcode is not None, "it has not ended"
        out, err = (path.read_text() for path in self._output)
        return self.process.exitcode, out, err


@pytest.fixture
def master() -> Iterator[ScriptedMaster]:
    master = ScriptedMaster()
    yield master
    master.close()


@pytest.fixture
def start(tmp_path: Path, master: ScriptedMaster) -> Iterator[Callable[..., ForkedAgent]]:
    """Starts an agent whose master is ours; words are options, ``script`` words for the script.
    A program that is forked imports a torch that takes no time."""
    started: list[ForkedAgent] = []

    def start_agent(
        *words: str, script: tuple[str, ...] = (), program: Path = WORKER
    ) -> ForkedAgent:
        folder = tmp_path / "workers"
        folder.mkdir()
        agent = ForkedAgent(
            folder,
            *("--rdzv-endpoint", f"127.0.0.1:{master.port}"),
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
        started.append(agent)
        return agent

    yield start_agent
    for agent in started:
        agent.process.kill()
        agent.process.join()
