"""A master process with scripted workers and servers."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.waiting import HANG_S, wait_for
from torch_edl.config import CheckpointConfig, ClusterConfig, DataConfig, JobConfig, TrainConfig
from torch_edl.processes.launcher import ProcessSpec
from torch_edl.processes.local import LocalLauncher
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

PROGRAM = "tests.unit.master.runtime.programs.run_master"
ROOT = Path(__file__).parents[4]
TOKEN = "secret"
FILES = {"a.csv": 23, "b.csv": 9}


class Master:
    """One master process of a job in a temporary home."""

    def __init__(self, home: Path, *, plan: dict[str, object], **config) -> None:
        self.home = home
        self.folder = home / "jobs" / "j"
        self.folder.mkdir(parents=True, exist_ok=True)
        data = home / "data"
        data.mkdir(exist_ok=True)
        for name, count in FILES.items():
            (data / name).write_text("x\n" + "".join(f"{i}\n" for i in range(count)))
        cluster = {"max_workers": 2, "servers": 2, "heartbeat_timeout_s": HANG_S}
        paths = {"train": (str(data / "*.csv"),)}
        self.config = JobConfig(
            name="j",
            model_file="/model.py",
            kind=config.get("kind", "train"),
            data=DataConfig(batch_size=2, records_per_task=4, **(paths | config.get("data", {}))),
            train=TrainConfig(**({"strategy": "ps"} | config.get("train", {}))),
            cluster=ClusterConfig(**(cluster | config.get("cluster", {}))),
            checkpoint=CheckpointConfig(**config.get("checkpoint", {})),
        )
        (self.folder / "job.json").write_text(self.config.to_json())
        (home / "plan.json").write_text(json.dumps(plan))
        self.launcher = LocalLauncher(self.folder / "logs")
        self.status = pb.GetStatusResponse()
        self._stub: Stub | None = None
        self.pid = self.start()

    def start(self, id: int = 0) -> int:
        return self.launcher.start(
            ProcessSpec(
                role="master",
                id=id,
                module=PROGRAM,
                args=["--job", "j"],
                end_with_parent=signal.SIGTERM,
                env={
                    "PYTHONPATH": str(ROOT),
                    "TORCH_EDL_HOME": str(self.home),
                    "TORCH_EDL_TOKEN": TOKEN,
                    "SCRIPT": str(self.home),
                },
            )
        )

    def stub(self) -> Stub:
        if self._stub is None:
            path = self.folder / "master.json"
            wait_for(path.exists, "master.json")
            found = json.loads(path.read_text())
            self.pid = found["pid"]
            self._stub = Stub(services.MASTER, found["address"], found["token"])
        return self._stub

    def look(self) -> pb.GetStatusResponse:
        self.status = self.stub().call(pb.GetStatusRequest(), timeout_s=HANG_S)
        return self.status

    def until(self, condition: Callable[[pb.GetStatusResponse], object], what: str) -> None:
        wait_for(lambda: condition(self.look()), f"{what}, last {self.status}")

    def end(self, state: str) -> str:
        """Waits for the state, then for the exit of the master, which is returned."""
        self.until(lambda s: s.state in ("finished", "failed", "stopped"), "the end")
        assert self.status.state == state, self.status
        return self.left()

    def exited(self) -> str:
        """Waits for the exit of a master."""
        exits = []

        def gone() -> bool:
            exits.extend(self.launcher.poll())
            return bool(exits)

        wait_for(gone, "the exit of the master")
        return str(exits[0])

    def left(self) -> str:
        """Waits for the exit of the master; nothing that it started may be left then."""
        exit = self.exited()
        assert [p.pid for p in self.children() if alive(p.pid)] == []
        return exit

    def children(self) -> list[pb.ProcessStatus]:
        return [p for p in self.status.processes if p.role != "master"]

    def running(self, role: str) -> list[pb.ProcessStatus]:
        return [p for p in self.children() if p.role == role and p.state == "running"]

    def log(self, name: str = "master-0") -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def records(self) -> Counter[tuple[int, int, str, int]]:
        """(incarnation, epoch, file, index) of everything that counted."""
        counted: Counter[tuple[int, int, str, int]] = Counter()
        for path in self.home.glob("records-*.txt"):
            for line in path.read_text().splitlines():
                incarnation, epoch, name, index = line.split()
                counted[int(incarnation), int(epoch), name, int(index)] += 1
        return counted

    def close(self) -> None:
        if self._stub is not None:
            self._stub.close()
        self.launcher.stop_all(grace_s=0)


def every_record(incarnation: int = 1, epochs: int = 1) -> Counter[tuple[int, int, str, int]]:
    return Counter(
        (incarnation, e, name, i)
        for e in range(epochs)
        for name, count in FILES.items()
        for i in range(count)
    )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kept(master: Master) -> dict[str, object]:
    """The status that the master wrote last."""
    return json.loads((master.folder / "status.json").read_text())
