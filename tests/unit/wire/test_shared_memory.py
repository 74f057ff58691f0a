"""Frames in memory that a client shares with a server of its machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.unit.wire.test_data_plane import TOKEN, connect, refused  # noqa: F401
from torch_edl import _core
from torch_edl.errors import UsageError
from torch_edl.wire import codec
from torch_edl.wire import data_plane_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import DataServer
from torch_edl.wire.data_plane.shared_memory import AttachedMemories, ClientMemory
from torch_edl.wire.data_plane.sockets import Keys
from torch_edl.wire.data_plane.stub import DataStub

IDS = np.arange(1000)


class Doubling:
    """Answers a pull with the ids of its tables, times two, in the room of the caller."""

    def __init__(self, endpoint: str) -> None:
        self.lent: list[bool] = []
        self.in_room: list[bool] = []
        self.server = DataServer({"pull": self._pull}, endpoint=endpoint, token=TOKEN, threads=2)
        self.endpoint = self.server.endpoint

    def _pull(self, given: Framed, _may_wait: bool) -> Framed:
        self.lent.append(given.lent)
        answer = Framed(ps.PullResponse(initialized=True))
        for entry in given.message.tables:
            ids = codec.ids_from_bytes(codec.entry_ids(entry, [], given.frames))
            memory = given.room.take(ids.nbytes) if given.room else None
            self.in_room.append(memory is not None)
            out = np.empty_like(ids) if memory is None else memory.view(np.int64)
            np.multiply(ids, 2, out=out)
            answer.put(answer.message.vectors.add(), out)
        return answer


@pytest.fixture
def doubling(tmp_path: Path) -> Iterator[Doubling]:
    made = Doubling(f"ipc://{tmp_path}/socket")
    yield made
    made.server.close()


def pull(stub: DataStub, *ids: np.ndarray, room: int = 1 << 20) -> list[codec.Array]:
    call = Framed(ps.PullRequest(), answer_bytes=room)
    for each in ids:
        call.put_ids(call.message.tables.add(name="t"), each)
    answer = stub.call(call, timeout_s=20)
    return [codec.from_proto(each, answer.frames) for each in answer.message.vectors]


def test_frames_are_read_and_written_in_place(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
) -> None:
    stub = connect(doubling.endpoint)
    assert pull(stub, np.arange(3))[0].tolist() == [0, 2, 4]  # the first call shares the memory
    for _ in range(3):
        first, small, second = pull(stub, IDS, np.arange(3), IDS + 1)
        assert first.tolist() == (2 * IDS).tolist()
        assert small.tolist() == [0, 2, 4]
        assert second.tolist() == (2 * IDS + 2).tolist()
    assert doubling.lent == [False, True, True, True]
    assert doubling.in_room == [False] + 9 * [True]
    own = stub.allocate(IDS.nbytes).view(np.int64)
    np.copyto(own, IDS)
    assert pull(stub, own)[0].tolist() == (2 * IDS).tolist()


def test_an_answer_beyond_its_room_is_sent(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
) -> None:
    stub = connect(doubling.endpoint)
    pull(stub)
    first, second = pull(stub, IDS, IDS + 1, room=IDS.nbytes)
    assert (first.tolist(), second.tolist()) == ((2 * IDS).tolist(), (2 * IDS + 2).tolist())
    assert doubling.in_room == [True, False]


def test_an_answer_keeps_its_values_while_it_is_used(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
) -> None:
    stub = connect(doubling.endpoint)
    pull(stub)
    kept = [pull(stub, IDS + k)[0] for k in range(20)]
    assert all(values[0] == 2 * k for k, values in enumerate(kept))
    stub.close()
    assert all(values[-1] == 2 * k + 1998 for k, values in enumerate(kept))


def test_memory_of_released_answers_is_used_again(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
) -> None:
    stub = connect(doubling.endpoint)
    pull(stub)
    memory = stub._memory
    assert memory is not None
    for size in (1000, 990, 1010) * 20:
        pull(stub, np.arange(size), room=8 * size)
    assert os.fstat(memory.request().file).st_blocks * 512 < 100_000


def test_a_server_that_cannot_attach_the_memory_gets_frames(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)  # as in another container
    stub = connect(doubling.endpoint)
    for _ in range(3):
        assert pull(stub, IDS)[0].tolist() == (2 * IDS).tolist()
    assert doubling.lent == 3 * [False]


def test_memory_of_another_process_with_equal_pid_and_file_is_not_attached(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = ClientMemory()
    mine = ClientMemory.request

    def request(memory: ClientMemory) -> pb.AttachMemoryRequest:
        made = mine(memory)
        made.file = others.core.file  # as the server sees a client of another PID namespace
        return made

    monkeypatch.setattr(ClientMemory, "request", request)
    stub = connect(doubling.endpoint)
    for _ in range(3):
        assert pull(stub, IDS)[0].tolist() == (2 * IDS).tolist()
    assert doubling.lent == 3 * [False]


@pytest.mark.parametrize("nonce", [b"", bytes(16), bytes(17)])
def test_memory_is_attached_by_its_nonce_alone(nonce: bytes) -> None:
    memories, memory = AttachedMemories(), ClientMemory()
    request = memory.request()
    request.nonce = nonce
    with pytest.raises(UsageError, match="of another process"):
        memories.attach(b"client", request)
    assert memories.find(b"client") is None


def test_places_outside_of_the_memory_are_refused(
    doubling: Doubling,
    connect: Callable[..., DataStub],  # noqa: F811
) -> None:
    stub = connect(doubling.endpoint)
    pull(stub)
    size = 4 << 30
    for place, length in ((size, 1), (size - 8, 16), (0, -8), (0, 2**62), (2**62, 2**62), (-2, 8)):
        head = pb.DataRequest(shared=pb.SharedFrames(places=[place], sizes=[length]))
        _refuses(stub, head)
    for at, length in ((size, 1), (-1, 8), (0, 2**62), (0, -1)):
        _refuses(stub, pb.DataRequest(room_at=at, room_bytes=length))
    _refuses(stub, pb.DataRequest(shared=pb.SharedFrames(places=[0, 1], sizes=[1])))
    assert pull(stub, IDS)[0].tolist() == (2 * IDS).tolist()


def _refuses(stub: DataStub, head: pb.DataRequest) -> None:
    """Check that a server refuses a call with these places."""
    assert stub._memory is not None
    call = Framed(ps.PullRequest(tables=[ps.TableIds(name="t", ids_frame=1)]))

    def place(given: pb.DataRequest, _: Framed) -> tuple[list[object], list[object], codec.Array]:
        given.MergeFrom(head)
        return [], [], np.empty(0, np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stub._memory, "place", place)
        code, _ = refused(lambda: stub.call(call, timeout_s=20))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_places_without_memory_are_refused(doubling: Doubling) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(doubling.endpoint)
        head = pb.DataRequest(key=Keys.of(TOKEN).request, pull=ps.PullRequest(), room_bytes=8)
        socket.send(head.SerializeToString())
        assert socket.poll(20_000)
        answer = pb.DataAnswer.FromString(socket.recv())
    assert "not attached" in answer.details


def test_only_sealed_memory_of_this_user_is_attached(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not sealed memory"):
        _core.SharedMemory.open(_path(os.memfd_create("plain")))
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="not sealed memory"):
        _core.SharedMemory.open(str(file))
    with pytest.raises(OSError, match="missing"):
        _core.SharedMemory.open(str(tmp_path / "missing"))


def _path(file: int) -> str:
    return f"/proc/self/fd/{file}"


def test_memory_of_a_client_that_has_ended_is_released() -> None:
    memories, memory = AttachedMemories(), ClientMemory()
    memories.attach(b"first", memory.request())
    assert memories.find(b"first") is not None
    del memory
    other = ClientMemory()
    memories.attach(b"second", other.request())
    assert memories.find(b"first") is None
    assert memories.find(b"second") is not None
    del other
    memories.release_ended()
    assert memories.find(b"second") is None


def test_the_size_of_memory_cannot_change() -> None:
    memory = _core.SharedMemory(1 << 20)
    for size in (0, 1 << 19, 1 << 21):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.file, size)


def test_arrays_keep_their_memory() -> None:
    memory = _core.SharedMemory(1 << 20)
    other = _core.SharedMemory.open(_path(memory.file))
    mine = memory.allocate(10)
    assert mine is not None
    mine[:] = 7
    seen = other.view(memory.position(mine), 10)
    del memory, other
    gc.collect()
    assert seen.tolist() == 10 * [7]


def test_memory_that_is_full_has_no_place() -> None:
    memory = _core.SharedMemory(1 << 16)
    taken = [memory.allocate(5000) for _ in range(20)]
    assert sum(each is not None for each in taken) == (1 << 16) // 5120
    assert memory.allocate(1 << 17) is None
    assert memory.position(bytes(8)) == -1
    places = {memory.position(each) for each in taken if each is not None}
    del taken
    again = memory.allocate(5000)
    assert again is not None
    assert memory.position(again) in places
