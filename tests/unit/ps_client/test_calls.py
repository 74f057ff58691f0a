"""Calls that the compiled core encodes, against the same calls as messages; and its answers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.unit.ps_server.conftest import whole
from torch_edl import _core
from torch_edl.ps_client.calls import CompiledCall, PullCall, PushCall, lookups
from torch_edl.ps_client.partition import DenseGradient, PartitionedIds, TableIds
from torch_edl.wire import data_plane_pb2 as data
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire.codec import Framed, frame

KEY, JOB, SERVERS = b"key", "j", 3


def tables(chance: np.random.Generator, ids: int) -> list[TableIds]:
    """Two tables with the same ids, and one of its own."""
    shared, own = (
        PartitionedIds.of(chance.integers(-(2**62), 2**62, n), SERVERS) for n in (ids, ids // 2)
    )
    return [TableIds("a", 16, shared), TableIds("b", 1, shared), TableIds("own", 3, own)]


def pull_of(chance: np.random.Generator, ids: int) -> PullCall:
    found = tables(chance, ids)
    return PullCall(1, found, lookups(found), True, -1, bool(ids % 2), 4096)


def push_of(chance: np.random.Generator, ids: int) -> PushCall:
    found = tables(chance, ids)
    gradients = [chance.random((len(t.ids.unique), t.dim), dtype=np.float32) for t in found]
    dense = DenseGradient(chance.random(5 * ids, dtype=np.float32), [2, 7]) if ids % 2 else None
    records = pb.RecordRange(task_id=3, first=2**40, last=2**40 + 9)
    return PushCall(2, found, lookups(found), dense, gradients, records, 77, 3, [0.1, 1e-9])


def inlined(given: Framed) -> Any:
    message = whole(given)
    for entry in message.tables:
        if entry.ids_frame:
            entry.ids, entry.ids_frame = bytes(frame(given.frames, entry.ids_frame)), 0
    return message


def decoded(call: CompiledCall, memory: _core.SharedMemory | None) -> tuple[Framed, Any]:
    """What a server receives."""
    (head, *sent), kept, room = call.encode(KEY, 9, memory)
    request = data.DataRequest.FromString(head)
    assert (request.key, request.call) == (KEY, 9)
    which = request.WhichOneof("request")
    assert which is not None
    assert bool(kept) == bool(request.shared.places)
    frames: list[Any] = sent
    if memory is not None and kept:
        rest = iter(sent)
        places = zip(request.shared.places, request.shared.sizes, strict=True)
        frames = [next(rest) if at < 0 else memory.view(at, size) for at, size in places]
        assert next(rest, None) is None
    if room is not None:
        assert memory is not None
        assert memory.position(room) == request.room_at
        assert len(room) == request.room_bytes
    return Framed(getattr(request, which), [memoryview(each) for each in frames]), kept


@pytest.mark.parametrize("ids", [0, 1, 30, 3001])
@pytest.mark.parametrize("make", [pull_of, push_of])
@pytest.mark.parametrize("shared", [False, True])
def test_a_call_is_the_same_as_its_message(make: Any, ids: int, shared: bool) -> None:
    call = make(np.random.default_rng(ids), ids)
    call.address(JOB, 4, known=4)
    memory = _core.SharedMemory(1 << 22) if shared else None
    message = call.framed()
    message.message.fence.job, message.message.fence.incarnation = JOB, 4
    given, _kept = decoded(call, memory)
    assert inlined(given) == inlined(message)


def test_a_gradient_in_shared_memory_is_not_copied() -> None:
    memory = _core.SharedMemory(1 << 20)
    room = memory.allocate(4 * 1000)
    assert room is not None
    flat = room.view(np.float32)
    flat[:] = 3
    records = pb.RecordRange(task_id=0, first=0, last=1)
    call = PushCall(0, [], [], DenseGradient(flat, []), [], records, 0, 0, ())
    (head, *sent), _, _ = call.encode(KEY, 1, memory)
    assert not sent
    assert data.DataRequest.FromString(head).shared.places == [memory.position(room)]


def test_a_reference_to_another_server_is_removed() -> None:
    call = PullCall(0, [], [], True, 12, False, 0)
    call.address(JOB, 5, known=5)
    assert decoded(call, None)[0].message.dense_version == 12
    call.address(JOB, 6, known=5)
    assert decoded(call, None)[0].message.dense_version == -1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradients": []}, "3 tables and 0 gradients"),
        ({"gradients": [np.zeros((1, 1), np.float32)] * 3}, "gradients: expected"),
        ({"server": SERVERS}, "offsets: no part of the ids for server 3"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    call = push_of(np.random.default_rng(0), 20)
    for name, value in change.items():
        setattr(call, name, value)
    with pytest.raises(ValueError, match=message):
        call.encode(KEY, 1, None)


def answer(table_ids: list[TableIds], server: int, version: int) -> tuple[bytes, list[Any]]:
    """The answer of a server whose rows have the value of the server."""
    made = Framed(pb.PullResponse(initialized=True, version=version))
    made.put(made.message.dense, np.full(4, version, np.float32))
    for table in table_ids:
        rows = np.full((table.ids.count(server), table.dim), server, np.float32)
        made.put(made.message.vectors.add(), rows)
    return data.DataAnswer(call=1, pull=made.message).SerializeToString(), list(made.frames)


def test_rows_of_all_servers_are_gathered() -> None:
    found = tables(np.random.default_rng(1), 100)
    rows = [np.empty((len(t.ids.unique), t.dim), np.float32) for t in found]
    answers = [(*answer(found, server, 10 + server), None, 0) for server in range(SERVERS)]
    read = _core.read_pull(answers, lookups(found), rows)
    assert read is not None
    versions, dense = read
    assert versions == [10, 11, 12]
    assert [each.tolist() for each in dense if each is not None] == [4 * [v] for v in versions]
    for table, out in zip(found, rows, strict=True):
        for server in range(SERVERS):
            assert (out[table.ids.part(server)] == server).all()


def test_damaged_answers_are_left_to_the_other_decoder() -> None:
    chance = random.Random(5)
    found = tables(np.random.default_rng(1), 40)
    rows = [np.empty((len(t.ids.unique), t.dim), np.float32) for t in found]
    heads = [answer(found, server, 1) for server in range(SERVERS)]
    refused = 0
    for _ in range(3000):
        head, frames = heads[0]
        damaged = bytearray(head)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        given = frames[: chance.randint(0, len(frames))] if chance.random() < 0.3 else frames
        room = np.zeros(64, np.uint8) if chance.random() < 0.3 else None
        answers = [(bytes(damaged), given, room, 0)]
        answers += [(*each, None, 0) for each in heads[1:]]
        refused += _core.read_pull(answers, lookups(found), rows) is None
    assert 1000 < refused < 3000
    answers = [(*each, None, 0) for each in heads]
    shared = data.SharedFrames(places=[60], sizes=[16])
    outside = data.DataAnswer(call=1, pull=pb.PullResponse(initialized=True), shared=shared)
    answers[1] = outside.SerializeToString(), [], np.zeros(64, np.uint8), 0
    assert _core.read_pull(answers, lookups(found), rows) is None
