"""A job on one or several machines, as its launchers see it: real nodes, and a server for their
reports."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc
import psutil

from master.runtime.local_node import LocalNode
from master.runtime.machines import Machines
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.server import serve


class Machine:
    """Launchers of one job on this machine, one after the other, with a real node."""

    def __init__(self) -> None:
        self._folder = JobFolder("ctr")
        self._folder.dir.mkdir(parents=True)
        self._launcher: LocalNode | Machines | None = None
        handlers = {"NodeReport": self._report}
        token = secrets.token_urlsafe(32)
        self._server, port = serve(
            services.NODES,
            handlers,
            address="127.0.0.1:0",
            token=token,
            threads=4,
            waiting=handlers,
            waiting_threads=4,
        )
        self.env = {ENV_MASTER: f"127.0.0.1:{port}", ENV_TOKEN: token}

    def launcher(self) -> LocalNode | Machines:
        self._launcher = self._local()
        return self._launcher

    def _local(self) -> LocalNode:
        return LocalNode(self._folder, incarnation="ab")

    def _report(
        self, request: pb.NodeReportRequest, context: grpc.ServicerContext
    ) -> pb.NodeReportResponse:
        assert self._launcher is not None
        return self._launcher.nodes.report(request, context.is_active)

    def log(self, path: str) -> str:
        return Path(path).read_text() if Path(path).exists() else ""

    def left(self) -> list[str]:
        """Return the pids of nodes of the job; the processes of a node end with it."""
        words = f"\0{self._folder.node_lock}\0".encode()  # not of another test
        found = [path for path in Path("/proc").glob("[0-9]*/cmdline") if words in _read(path)]
        return [path.parent.name for path in found]

    def close(self) -> None:
        self._server.stop(0).wait()


class SeveralMachines(Machine):
    """The same with nodes that join. Of each, the host name is given, and may be any."""

    def __init__(self, folder: Path, *, least: int = 1, timeout_s: float = 30.0) -> None:
        super().__init__()
        self._logs = folder
        cluster = ClusterConfig(
            min_workers=1,
            max_workers=6,
            min_nodes=least,
            max_nodes=3,
            endpoint=self.env[ENV_MASTER],
            heartbeat_timeout_s=timeout_s,
        )
        self.config = JobConfig(name="ctr", model_file="/nowhere/model.py", cluster=cluster)
        self.nodes: list[subprocess.Popen[bytes]] = []

    def launcher(self, *, model_file: str = "", mark: Path | None = None) -> Machines:
        config = replace(self.config, model_file=model_file or self.config.model_file)
        self._launcher = Machines(self._local(), config, incarnation="ab", preload=(), mark=mark)
        return self._launcher

    def join(
        self, host: str, *, slots: int = 0, incarnation: str = "ab"
    ) -> subprocess.Popen[bytes]:
        """Start the node of another machine."""
        words = ["--job", "ctr", "--name", f"{host}-{len(self.nodes)}", "--host", host]
        words += ["--incarnation", incarnation, "--slots", str(slots)]
        with open(self._logs / f"{host}.log", "ab") as log:
            node = subprocess.Popen(
                [sys.executable, "-P", "-m", "torch_edl.node", *words],
                env={**os.environ, **self.env},
                stdout=log,
                stderr=log,
            )
        self.nodes.append(node)
        return node

    def log(self, path: str) -> str:
        if not (host := re.fullmatch("output of the node on (.*)", path)):
            return super().log(path)
        return (self._logs / f"{host[1]}.log").read_text()

    def left(self) -> list[str]:
        """Return the pids of the node of this machine, and of processes of the others: these nodes
        end when the launcher has gone."""
        running = [psutil.Process(node.pid) for node in self.nodes if node.poll() is None]
        children = (each for node in running for each in node.children())
        # A node that was forked has a child without words, which forks for it: see tests/warm.py.
        return [*super().left(), *(str(each.pid) for each in children if _words_of(each))]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()
        super().close()


def _words_of(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
