"""A job on one machine, as its launchers see it: a real node, and a server for its reports."""

from __future__ import annotations

from pathlib import Path

import grpc

from master.runtime.local_node import LocalNode
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
        self._launcher: LocalNode | None = None
        handlers = {"NodeReport": self._report}
        self._server, port = serve(
            services.NODES,
            handlers,
            address="127.0.0.1:0",
            token="t",
            threads=4,
            waiting=handlers,
            waiting_threads=4,
        )
        self.env = {ENV_MASTER: f"127.0.0.1:{port}", ENV_TOKEN: "t"}

    def launcher(self) -> LocalNode:
        self._launcher = LocalNode(self._folder, incarnation="ab")
        return self._launcher

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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
