"""Usual calls by the compiled core, against the same calls decoded step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.ps_server.conftest import described
from torch_edl import _core
from torch_edl.config import TrainConfig
from torch_edl.ps_server.service import PserverService
from torch_edl.ps_server.shard import ModelShard
from torch_edl.ps_server.steady_state import SteadyState
from torch_edl.wire import codec
from torch_edl.wire import data_plane_pb2 as data
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane import shared_memory
from torch_edl.wire.data_plane.sockets import Keys

TOKEN = "secret"
KEY = Keys.of(TOKEN).request
FENCE = pb.Fence(job="j", incarnation=1)
DIMS = {"t": 2, "u": 5}
MOST = 1 << 20
DENSE = 12  # numbers: a buffer, a frozen and two trained parameters


class World:
    """A shard, its usual answers, and its answers to all calls."""

    def __init__(self) -> None:
        self.shard = ModelShard(TrainConfig(), None, lambda: pytest.fail("failed half-way"))
        service = PserverService(self.shard, fence=FENCE, stem="shard-0-of-1")
        self.usual: SteadyState = service.steady_state(TOKEN, is_local=True)
        self._answers = service.data_answers()
        values = {"buffer": 2, "frozen": 1, "weight": 4, "z": 5}
        self.shard.initialize(
            described(
                {name: np.ones(size, np.float32) for name, size in values.items()},
                kind="adagrad",
                hyper={"lr": 0.1},
                groups={"buffer": -2, "frozen": -1},
                seed=1,
            )
        )
        normal = pb.Initializer(kind="normal", args={"std": 1.0})
        infos = [
            pb.EmbeddingTableInfo(name=name, dim=dim, initializer=normal, num_embeddings=1000)
            for name, dim in DIMS.items()
        ]
        self.shard.add_tables(pb.PushEmbeddingTableInfosRequest(infos=infos))

    def step_by_step(self, call: Framed) -> Any:
        """Answer a call without the core."""
        name = "pull" if isinstance(call.message, pb.PullRequest) else "push_gradients"
        answer = self._answers[name](call, True)
        assert isinstance(answer, Framed)
        return answer

    @property
    def state(self) -> tuple[object, ...]:
        """Everything that a call may change."""
        assert self.shard.dense is not None
        rows = {}
        for name, table in self.shard.tables.items():
            ids, vectors, _ = table.core.scan(0, 10_000)
            order = np.argsort(ids)
            rows[name] = ids[order].tolist(), vectors[order].tobytes()
        flat = self.shard.dense.flat.tobytes()
        return flat, rows, self.shard.version, self.shard.watermarks()


def pull(rng: np.random.Generator, **more: Any) -> Framed:
    call = Framed(pb.PullRequest(fence=FENCE, dense_version=-1, **more))
    ids = rng.choice(1000, rng.integers(0, 400), replace=False).astype(np.int64)
    call.put_ids(call.message.tables.add(name="t"), ids)
    if rng.integers(2):
        call.message.tables.add(name="u", same_ids_as=1)
    else:
        call.put_ids(call.message.tables.add(name="u"), ids[::2].copy())
    return call


def push(rng: np.random.Generator, first: int, dtype: int = tensor.DT_FLOAT) -> Framed:
    request = pb.PushGradientsRequest(
        fence=FENCE,
        range=pb.RecordRange(task_id=first % 3, first=first // 3, last=first // 3 + 1),
        learning_rates=[0.1] * int(rng.integers(2)),
    )
    call = Framed(request)
    call.put_floats(request.dense, rng.standard_normal(DENSE).astype(np.float32), dtype)
    ids = rng.choice(1000, rng.integers(1, 400), replace=False).astype(np.int64)
    for name, dim in DIMS.items():
        entry = request.tables.add(name=name)
        if name == "t":
            call.put_ids(entry, ids)
        else:
            entry.same_ids_as = 1
        values = rng.standard_normal((len(ids), dim)).astype(np.float32)
        call.put_floats(entry.values, values, dtype)
    return call


def sent(call: Framed, memory: _core.SharedMemory | None = None, room: int = 0) -> list[Any]:
    """The frames of a call as they are received: in shared memory, if there is any."""
    head = data.DataRequest(key=KEY, call=7)
    is_pull = isinstance(call.message, pb.PullRequest)
    getattr(head, "pull" if is_pull else "push_gradients").CopyFrom(call.message)
    if memory is None:
        return [head.SerializeToString(), *call.frames]
    frames: list[Any] = []
    kept = []
    for frame in call.frames:
        place = memory.allocate(len(frame)) if len(frame) > 100 else None
        if place is None:
            frames.append(frame)
        else:
            place[:] = np.frombuffer(frame, np.uint8)
        kept.append(place)
        head.shared.places.append(-1 if place is None else memory.position(place))
        head.shared.sizes.append(len(frame))
    if room:
        kept.append(memory.allocate(room))
        head.room_at, head.room_bytes = memory.position(kept[-1]), room
    return [head.SerializeToString(), *frames]


def received(content: list[Any], memory: _core.SharedMemory | None) -> tuple[Any, list[bytes]]:
    """Message and frames of an answer of the core."""
    answer = data.DataAnswer.FromString(content[0])
    assert answer.call == 7
    frames = [bytes(each) for each in content[1:]]
    if answer.shared.places:
        assert memory is not None
        rest = iter(frames)
        frames = [
            next(rest) if at < 0 else bytes(memory.view(at, size))
            for at, size in zip(answer.shared.places, answer.shared.sizes, strict=True)
        ]
    return getattr(answer, answer.WhichOneof("answer")), frames


def shifted(frame: Any) -> memoryview:
    """A copy of a frame at an odd address, where ZeroMQ may receive a small frame."""
    memory = np.empty(len(frame) + 8, np.uint8)
    start = 1 - memory.ctypes.data % 8 + 8 * (memory.ctypes.data % 8 > 1)
    memory[start : start + len(frame)] = np.frombuffer(frame, np.uint8)
    return memory[start : start + len(frame)].data


def test_small_frames_may_be_received_at_any_address() -> None:
    rng = np.random.default_rng(1)
    quick, slow = World(), World()
    for call in (push(rng, 0), pull(rng, dense=True)):
        content = [shifted(frame) for frame in sent(call)]
        assert np.frombuffer(content[1], np.uint8).ctypes.data % 2
        found = quick.usual.answer(content, None, MOST)
        assert found is not None
        message, frames = received(found.content, None)
        expected = slow.step_by_step(call)
        assert message.version == expected.message.version
        assert frames == [bytes(frame) for frame in expected.frames]
    assert quick.state == slow.state


@pytest.mark.parametrize("shared", [False, True])
def test_the_core_answers_as_step_by_step(shared: bool) -> None:
    rng = np.random.default_rng(3)
    quick, slow = World(), World()
    for number in range(60):
        memory = _core.SharedMemory(1 << 20) if shared else None
        room = [0, 3000, 100_000][number % 3]
        given = pull(rng, dense=bool(number % 2), read_only=number % 5 == 0)
        found = quick.usual.answer(sent(given, memory, room), memory, MOST)
        assert found is not None
        message, frames = received(found.content, memory)
        expected = slow.step_by_step(given)
        assert [f.tobytes() for f in tensors(message, frames)] == [
            f.tobytes() for f in tensors(expected.message, expected.frames)
        ]
        assert message.version == expected.message.version
        for each in (number, number, number - 3):  # the others are duplicates
            given = push(rng, max(each, 0))
            found = quick.usual.answer(sent(given, memory), memory, MOST)
            assert found is not None
            assert received(found.content, memory)[0] == slow.step_by_step(given).message
        assert quick.state == slow.state


@pytest.mark.parametrize("by_core", [True, False])
def test_room_for_the_answer_over_the_ids_creates_no_other_rows(by_core: bool) -> None:
    world, memory = World(), _core.SharedMemory(1 << 20)
    call = Framed(pb.PullRequest(fence=FENCE, dense_version=-1))
    ids = np.arange(300, dtype=np.int64)
    call.put_ids(call.message.tables.add(name="u"), ids)
    call.message.tables.add(name="t", same_ids_as=1)
    head = data.DataRequest.FromString(sent(call, memory)[0])
    head.room_at, head.room_bytes = head.shared.places[0], 100_000
    if by_core:
        assert world.usual.answer([head.SerializeToString()], memory, MOST) is not None
    else:
        world.step_by_step(shared_memory.received(memory, head, head.pull, []))
    rows = world.state[1]
    assert isinstance(rows, dict)
    assert [rows[name][0] for name in ("u", "t")] == [ids.tolist()] * 2


def tensors(message: pb.PullResponse, frames: Any) -> list[codec.Array]:
    found = [codec.from_proto(each, frames) for each in message.vectors]
    return [*found, codec.from_proto(message.dense, frames)] if message.dense.dtype else found


def unusual(name: str) -> Callable[[], list[Any]]:
    """A call that the core leaves to the other way."""

    def made() -> list[Any]:
        rng = np.random.default_rng(1)
        call = pull(rng) if "pull" in name else push(rng, 0)
        message = call.message
        if "fence" in name:
            message.fence.incarnation = 2
        elif "table" in name:
            message.tables[0].name = "other"
        elif "16 bits" in name:
            call = push(rng, 0, tensor.DT_HALF)
        elif "parameter without gradient" in name:
            message.without_gradient.append(3)
        elif "not finite" in name:
            values = np.frombuffer(call.frames[0], np.float32).copy()
            values[-1] = np.nan
            call.frames[0] = values.view(np.uint8).data
        elif "rate" in name:
            message.learning_rates[:] = [1e39] if "large" in name else [0.1, 0.1]
        elif "negative task" in name:
            message.range.task_id = -1
        elif "outside" in name:
            place = message.tables[0].ids_frame - 1
            ids = np.frombuffer(call.frames[place], np.int64).copy()
            ids[0] = 1000
            call.frames[place] = ids.view(np.uint8).data
        elif "frame" in name:
            message.tables[0].ids_frame = 9
        elif "twice" in name:
            message.tables[1].name = "t"
        elif "large" in name:
            call.frames[0] = memoryview(bytes(2 << 20))
        if "key" in name:
            return [sent(call)[0].replace(KEY, bytes(len(KEY))), *call.frames]
        return sent(call)

    return made


@pytest.mark.parametrize(
    "name",
    [
        "a pull with another key",
        "a pull with another fence",
        "a pull of an unknown table",
        "a pull with a missing frame",
        "a pull of ids outside the table",
        "a large pull",
        "a push with another key",
        "a push with another fence",
        "a push to an unknown table",
        "a push with a missing frame",
        "a push of ids outside the table",
        "a push of a table twice",
        "a push of 16 bits",
        "a push with a parameter without gradient",
        "a push that is not finite",
        "a push of a negative task",
        "a push with too large a rate",
        "a push with the rates of two groups",
    ],
)
def test_unusual_calls_change_nothing(name: str) -> None:
    world = World()
    before = world.state
    assert world.usual.answer(unusual(name)(), None, MOST) is None
    assert world.state == before


def test_a_gradient_of_a_buffer_may_be_anything() -> None:
    world, call = World(), push(np.random.default_rng(1), 0)
    flat = np.frombuffer(call.frames[0], np.float32).copy()
    flat[:2] = np.inf
    call.frames[0] = flat.view(np.uint8).data
    assert world.usual.answer(sent(call), None, MOST) is not None


def fuzz(seed: int, times: int) -> None:
    """Change bytes of the heads of calls: each is answered as step by step, or left alone."""
    rng, choice = np.random.default_rng(seed), random.Random(seed)
    world = World()
    for number in range(times):
        memory = _core.SharedMemory(1 << 20)
        call = pull(rng, dense=True) if number % 2 else push(rng, number // 2)
        head, *frames = sent(call, memory, 10_000)
        bad = bytearray(head)
        for _ in range(choice.randint(1, 4)):
            how, at = choice.randrange(3), choice.randrange(len(bad))
            if how == 0:
                bad[at] = choice.randrange(256)
            elif how == 1:
                del bad[at : at + choice.randrange(1, 9)]
            else:
                bad[at:at] = choice.randbytes(choice.randrange(1, 9))
            if not bad:
                bad = bytearray(b"\0")
        before = world.state if number % 20 == 0 else None
        try:
            found = world.usual.answer([bytes(bad), *frames], memory, MOST)
        except Exception:
            found = None
        if found is None and before is not None:
            rows = {name: table.core.size for name, table in world.shard.tables.items()}
            assert world.state[2:] == before[2:], rows
        assert not world.shard.broken


def test_changed_bytes_do_no_harm() -> None:
    fuzz(1, 2000)
