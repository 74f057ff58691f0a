"""Tasks of streams: cut as records arrive, each offset in one, and the same after a restart."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from torch_edl.data.stream_space import TASKS_AHEAD, StreamPlan, StreamSpace, saved_plan
from torch_edl.data.task_space import Task
from torch_edl.errors import DataError
from torch_edl.events import RecordsRemoved


def space(**settings: object) -> StreamSpace:
    return StreamSpace(4, batch_size=2, **settings)  # type: ignore[arg-type]


def grow(stream: StreamSpace, done: int = 0, idle: bool = False, **ends: int) -> list[Task]:
    """The tasks that follow from partitions that begin at 0."""
    before = stream.plan.end
    stream.grow({name: (0, end) for name, end in ends.items()}, done=done, idle=idle)
    stream.kept(stream.life, stream.plan.end)
    return [stream.task(id) for id in range(before, stream.plan.end)]


def ranges(tasks: list[Task]) -> list[tuple[str, int, int]]:
    return [(task.shard, task.start, task.end) for task in tasks]


def test_full_tasks_of_each_partition_in_turn() -> None:
    stream = space()
    assert ranges(grow(stream, a=9, b=5)) == [("a", 0, 4), ("b", 0, 4), ("a", 4, 8)]
    assert grow(stream, a=9, b=5) == []
    assert ranges(grow(stream, a=9, b=8)) == [("b", 4, 8)]
    assert [task.id for task in stream.plan.tasks] == [0, 1, 2, 3]
    assert (stream.total_records, stream.known) == (17, 17)


def test_what_is_left_is_cut_where_workers_are_idle() -> None:
    stream = space()
    assert ranges(grow(stream, idle=True, a=5, b=3)) == [("a", 0, 4)]
    assert ranges(grow(stream, idle=True, a=5, b=3)) == [("a", 4, 5), ("b", 0, 3)]
    assert grow(stream, idle=True, a=5, b=3) == []
    assert ranges(grow(stream, idle=True, a=6, b=3)) == [("a", 5, 6)]
    assert [stream.records_before(id) for id in range(5)] == [0, 4, 5, 8, 9]
    assert [stream.steps_before(id) for id in range(5)] == [0, 2, 3, 5, 6]


def test_a_new_partition_is_read_from_its_first_offset() -> None:
    stream = space()
    grow(stream, a=4)
    stream.grow({"a": (0, 4), "b": (7, 11)}, done=0, idle=False)
    assert ranges(list(stream.plan.tasks))[1:] == [("b", 7, 11)]


def test_a_bounded_number_of_tasks_is_cut_ahead() -> None:
    stream = space()
    assert len(grow(stream, a=1 << 40)) == TASKS_AHEAD
    assert grow(stream, a=1 << 40) == []
    assert len(grow(stream, done=3, a=1 << 40)) == 3
    assert stream.total_records == 1 << 40


def test_a_task_may_be_leased_when_it_is_kept() -> None:
    stream = space()
    stream.grow({"a": (0, 8)}, done=0, idle=False)
    assert (stream.plan.end, stream.total) == (2, 0)
    stream.kept(stream.life, 1)
    assert stream.total == 1
    stream.restore(None)
    stream.grow({"a": (0, 8)}, done=0, idle=False)
    stream.kept(stream.life - 1, 2)  # of the plan before
    assert stream.total == 0


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ({"max_steps": 3}, [("a", 0, 4), ("b", 0, 2)]),
        ({"max_steps": 4}, [("a", 0, 4), ("b", 0, 4)]),
        ({"max_records": 7}, [("a", 0, 4), ("b", 0, 3)]),
        ({"max_records": 7, "max_steps": 2}, [("a", 0, 4)]),
    ],
)
def test_a_limit_ends_the_stream(limit: dict[str, int], expected: list[object]) -> None:
    stream = space(**limit)
    stream.grow({"a": (0, 90), "b": (0, 90)}, done=0, idle=False)
    assert ranges(list(stream.plan.tasks)) == expected
    assert stream.open  # they are not leased
    stream.kept(stream.life, stream.plan.end)
    assert not stream.open
    assert stream.epoch_of(stream.total) == 1


def test_the_last_task_before_a_limit_is_cut_as_soon_as_its_records_are_there() -> None:
    stream = space(max_records=6)
    assert ranges(grow(stream, a=5)) == [("a", 0, 4)]
    assert ranges(grow(stream, a=6)) == [("a", 4, 6)]
    assert not stream.open


def test_records_that_were_removed_are_an_error_unless_they_may_be_left_out() -> None:
    for skip in (False, True):
        stream = space(skip_removed=skip)
        grow(stream, a=4)
        if not skip:
            with pytest.raises(DataError, match="a: the offsets 4 to 9 were removed"):
                stream.grow({"a": (10, 20)}, done=0, idle=False)
            continue
        (removed,) = stream.grow({"a": (10, 18)}, done=0, idle=False)
        assert removed == RecordsRemoved(partition="a", first=4, last=9)
        assert ranges(list(stream.plan.tasks))[1:] == [("a", 10, 14), ("a", 14, 18)]


def test_a_topic_that_was_made_anew_is_noticed() -> None:
    stream = space()
    grow(stream, a=8)
    with pytest.raises(DataError, match="ends at offset 3, and was read to 8"):
        stream.grow({"a": (0, 3)}, done=0, idle=False)


def test_the_beginning_is_where_the_stream_began() -> None:
    """And not where it would begin now: what was removed since is an error."""
    stream = space()
    stream.grow({"a": (5, 9)}, done=0, idle=False)
    stream.restore(None)
    assert stream.plan.next == {"a": 5}
    with pytest.raises(DataError, match="offsets 5 to 6 were removed"):
        stream.grow({"a": (7, 9)}, done=0, idle=False)


def test_every_offset_is_in_one_task_whatever_happens() -> None:
    """Restarts from the store and from checkpoints between growth of partitions that come later."""
    chance = random.Random(3)
    for _ in range(30):
        stream, ends, done = space(), {"a": 0, "b": 0}, 0
        seen: dict[int, Task] = {}
        saved: tuple[int, object] = (0, None)
        for step in range(60):
            for name in ends:
                ends[name] += chance.randrange(9)
            if step == 20:
                ends["c"] = 2
            idle = chance.random() < 0.3
            for task in grow(stream, done=done, idle=idle, **ends):
                seen[task.id] = task
            done = chance.randrange(done, stream.plan.end + 1)
            event = chance.randrange(6)
            if event == 0:
                stream.forget(done)
            elif event == 1:  # a master takes over
                state = json.loads(json.dumps(saved_plan(stream, done)["plan"]))
                again = space()
                again.restore(state)
                assert again.plan == stream.plan.since(done, 2)
                stream = again
            elif event == 2:
                saved = done, json.loads(json.dumps(saved_plan(stream, done)["plan"]))
            elif event == 3 and saved[1] is not None:
                done = saved[0]
                stream.restore(saved[1])  # type: ignore[arg-type]
                seen = {id: task for id, task in seen.items() if id < stream.plan.end}
        counts = Counter(
            (task.shard, i) for task in seen.values() for i in range(task.start, task.end)
        )
        assert set(counts.values()) == {1}
        for name, offset in stream.plan.next.items():
            assert all(counts[name, i] == 1 for i in range(offset))
        assert stream.records_before(stream.plan.end) == sum(task.records for task in seen.values())


def test_a_plan_is_itself_when_read_again() -> None:
    plan = StreamPlan(next={"a": 3, "b": 0}, origin={"a": 0, "b": 0}).with_task("a", 3, 9, 4)
    assert StreamPlan.from_state(json.loads(json.dumps(plan.to_state())), 4) == plan
