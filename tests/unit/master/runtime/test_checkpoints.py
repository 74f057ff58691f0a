"""Hold, Snapshot and Release over real gRPC, with servers whose marks the test writes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from master.runtime.effects import Effects
from master.state.actions import CommitLocal, Flush, SaveServers
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire import services
from torch_edl.wire.server import serve

SPACE = TaskSpace([Shard("a", 40)], 4, batch_size=2)
EFFECTS = Effects(token="t")
MANIFEST = Manifest(job="j", strategy="ps", steps=0, data={"seed": 1})


class Shard0:
    """Answers as a parameter server does; keeps what it was asked."""

    def __init__(self, number: int, watermarks: dict[int, int], retired: int = 0) -> None:
        self.number = number
        self.watermarks = ps.Watermarks(
            retired_before=retired,
            tasks=[ps.Watermark(task_id=k, offset=v) for k, v in watermarks.items()],
        )
        self.initialized = True
        self.fails = ""
        self.calls: list[str] = []
        self.targets: ps.Watermarks | None = None
        unused = services.methods(services.PSERVER)
        handlers = dict.fromkeys(unused, self._refuse) | {
            "Hold": self._hold,
            "Snapshot": self._snapshot,
            "Release": self._release,
            "Flush": lambda r, c: self.calls.append("Flush") or ps.FlushResponse(version=1),
        }
        self.server, port = serve(
            services.PSERVER,
            handlers,
            address="127.0.0.1:0",
            token="t",
            threads=4,
        )
        self.address = f"127.0.0.1:{port}"

    def _refuse(self, request, context):
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in this test")

    def _hold(self, request: ps.HoldRequest, context) -> ps.HoldResponse:
        assert (request.fence.job, request.fence.incarnation) == ("j", 3 + self.number)
        assert request.timeout_ms > 0
        self.calls.append("Hold")
        return ps.HoldResponse(initialized=self.initialized, watermarks=self.watermarks)

    def _snapshot(self, request: ps.SnapshotRequest, context) -> ps.SnapshotResponse:
        self.calls.append("Snapshot")
        self.targets = request.targets
        if self.fails == "short":
            return ps.SnapshotResponse(snapshot=ps.Snapshot(files={"gone": 1}))
        name = f"shard-{self.number}"
        Path(request.directory, name).write_bytes(b"xyz")
        if self.fails:
            raise UsageError(self.fails)
        snapshot = ps.Snapshot(files={name: 3}, version=7 + self.number)
        return ps.SnapshotResponse(snapshot=snapshot)

    def _release(self, request: ps.ReleaseRequest, context) -> ps.ReleaseResponse:
        self.calls.append("Release")
        return ps.ReleaseResponse()


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def make(number: int, watermarks: dict[int, int], retired: int = 0) -> Shard0:
            made = Shard0(number, watermarks, retired)
            stack.callback(lambda: made.server.stop(0).wait())
            return made

        yield make


def save(servers, root: Path, known: Watermarks | None = None):
    each = [pb.Server(address=s.address, incarnation=3 + s.number) for s in servers]
    action = SaveServers(each, 1, known or Watermarks(), MANIFEST, SPACE, root)
    return EFFECTS.save_servers(action)


def test_all_cut_at_the_union_of_their_marks(start, tmp_path):
    servers = [start(0, {2: 2, 3: 4}, retired=1), start(1, {1: 4, 2: 4, 5: 2})]
    found = save(servers, tmp_path, Watermarks(1, {6: 4}))
    # What the master knows to be done from before is in it, too, and must be at the cut: in sync
    # mode it may still wait for its quorum.
    watermarks = {1: 4, 2: 4, 3: 4, 5: 2, 6: 4}
    for server in servers:
        assert server.calls == ["Hold", "Snapshot", "Release"]
        assert server.targets.retired_before == 1
        assert {t.task_id: t.offset for t in server.targets.tasks} == watermarks
    manifest = layout.read(found.path)
    assert manifest == found.manifest
    assert manifest.watermarks == Watermarks(1, watermarks)
    assert manifest.steps == 2 * 5 + 1
    assert found.path.name == "step-0000000011"
    assert manifest.files == {"shard-0": 3, "shard-1": 3}
    assert manifest.versions == (7, 8)
    assert (manifest.shards, manifest.data) == (2, {"seed": 1})


def test_the_same_step_is_not_written_twice(start, tmp_path):
    server = start(0, {0: 2})
    first = save([server], tmp_path)
    assert save([server], tmp_path) == first
    assert server.calls == ["Hold", "Snapshot", "Release", "Hold", "Release"]


def test_servers_without_a_model_are_let_go(start, tmp_path):
    servers = [start(0, {}), start(1, {})]
    servers[1].initialized = False
    with pytest.raises(CheckpointError, match="no model yet"):
        save(servers, tmp_path)
    assert [s.calls for s in servers] == [["Hold", "Release"]] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("problem", ["disk full", "short"])
def test_a_failure_leaves_nothing_and_lets_everybody_go(start, tmp_path, problem):
    servers = [start(0, {0: 2}), start(1, {})]
    servers[1].fails = problem
    with pytest.raises(CheckpointError):
        save(servers, tmp_path)
    assert [s.calls for s in servers] == [["Hold", "Snapshot", "Release"]] * 2
    assert list(tmp_path.iterdir()) == []


def test_a_dead_server_is_named(start, tmp_path):
    servers = [start(0, {}), start(1, {})]
    servers[1].server.stop(0).wait()
    with pytest.raises(CheckpointError, match="server of shard 1"):
        save(servers, tmp_path)
    assert servers[0].calls == ["Hold", "Release"]


def test_flush_asks_all(start):
    servers = [start(0, {}), start(1, {})]
    EFFECTS.flush(Flush([pb.Server(address=s.address) for s in servers], 3, "j"))
    assert [s.calls for s in servers] == [["Flush"]] * 2


@pytest.mark.parametrize("content", [b"abc", b"ab"])
def test_what_a_worker_wrote_is_committed_by_rename_or_leaves_nothing(tmp_path, content):
    folder = tmp_path / ".snapshot-1"
    folder.mkdir()
    (folder / "f").write_bytes(content)
    manifest = Manifest(job="j", strategy="local", steps=5, files={"f": 3}, versions=(4,))
    action = CommitLocal(folder, manifest, 1, tmp_path)
    if len(content) < 3:
        with pytest.raises(CheckpointError, match="2 bytes"):
            EFFECTS.commit_local(action)
        assert list(tmp_path.iterdir()) == []
        return
    found = EFFECTS.commit_local(action)
    assert found.path == layout.step_dir(tmp_path, 5)
    assert layout.read(found.path).versions == (4,)
    assert list(tmp_path.iterdir()) == [found.path]
