"""How far ahead tasks are leased, and what becomes of those that were not begun."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.waiting import HANG_S, wait_for
from torch_edl.data.tasks import (
    MAX_AHEAD,
    Item,
    LeasedTasks,
    ModelTask,
    NoMoreTasks,
    PassOver,
    RecordTask,
    ServersChanged,
    TaskDuration,
    TaskFailed,
    TaskPrefetcher,
)
from torch_edl.errors import MasterLostError
from torch_edl.master_client.leases import HeldLease
from torch_edl.wire import master_pb2 as pb


class Panic(BaseException):
    """As pyo3's PanicException, with which libraries in Rust report a panic."""


class Master:
    """Items each request with what the test has put; keeps what was asked and declined."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.epochs = 0
        self.asked: queue.Queue[tuple[int, int]] = queue.Queue()
        self.answers: queue.Queue[pb.LeaseResponse | Exception] = queue.Queue()
        self.declined: queue.Queue[int] = queue.Queue()
        self._ids = iter(range(1, 10_000))

    def request(self, want: int, ahead: int) -> pb.LeaseResponse:
        self.asked.put((want, ahead))
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        if answer.next == pb.LeaseResponse.CLUSTER_CHANGED:
            self.incarnation = answer.cluster.incarnation
        return answer

    def decline(self, leases: list[HeldLease]) -> None:
        for lease in leases:
            self.declined.put(lease.lease_id)

    def grant(self, *kinds: pb.TaskKind) -> list[int]:
        """Grants a task of each kind; returns the numbers of the leases."""
        leases = [pb.LeaseMessage(lease_id=next(self._ids), kind=kind) for kind in kinds]
        self.answers.put(pb.LeaseResponse(leases=leases))
        return [lease.lease_id for lease in leases]

    def expect(self) -> tuple[int, int]:
        """The next request: (want, ahead)."""
        return self.asked.get(timeout=HANG_S)


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def tasks(master: Master) -> Iterator[LeasedTasks]:
    tasks = LeasedTasks(master, lambda lease: lambda offset: iter(()), clock=lambda: 0.0)  # type: ignore[arg-type]
    yield tasks
    tasks.stop()
    master.answers.put(pb.LeaseResponse())


def taken(tasks: LeasedTasks) -> Item:
    answer = tasks.get(HANG_S)
    assert answer is not None
    return answer


def until(tasks: LeasedTasks, there: Callable[[], bool]) -> None:
    with tasks._changed:
        assert tasks._changed.wait_for(there, HANG_S)


def lease_id(answer: Item) -> int:
    assert isinstance(answer, RecordTask)
    return answer.lease.lease_id


def begin(master: Master, tasks: LeasedTasks, *kinds: pb.TaskKind) -> list[int]:
    """Takes the first task; short as it was, many are asked for, of which ``kinds`` are granted."""
    (first,) = master.grant(pb.TASK_TRAIN)
    assert lease_id(taken(tasks)) == first
    assert master.expect() == (1, 0)
    ids = master.grant(*kinds)
    assert master.expect() == (1, 0)  # nothing is known of what a task takes until one is done
    return ids


def test_a_pace_is_the_mean_of_what_tasks_took() -> None:
    pace = TaskDuration()
    assert pace.tasks(10) == 1
    pace.given(100.0)
    pace.asked(102.0)
    pace.asked(150.0)  # waited for the next task: the first is done since long
    assert pace.tasks(10) == 5
    pace.given(150.0)
    pace.asked(160.0)
    assert pace.tasks(10) == 3  # 2 s, and a little of 10 s
    assert pace.tasks(0.001) == 1


def test_tasks_that_take_no_time_are_leased_up_to_a_limit() -> None:
    pace = TaskDuration()
    pace.given(1.0)
    pace.asked(1.0)
    assert pace.tasks(10) == MAX_AHEAD


def test_what_is_missing_is_asked_for_once(master: Master, tasks: LeasedTasks) -> None:
    first, second, third = begin(master, tasks, *[pb.TASK_TRAIN] * 3)
    assert lease_id(taken(tasks)) == first
    assert master.expect() == (0, MAX_AHEAD - 2)  # two are in hand
    master.answers.put(pb.LeaseResponse())  # no further task: the master is not asked again
    with pytest.raises(queue.Empty):
        master.asked.get(timeout=0.1)
    assert lease_id(taken(tasks)) == second
    assert master.expect() == (0, MAX_AHEAD - 1)
    master.answers.put(pb.LeaseResponse())
    assert lease_id(taken(tasks)) == third
    assert master.expect() == (1, MAX_AHEAD - 1)


def test_nothing_is_asked_between_two_passes(master: Master, tasks: LeasedTasks) -> None:
    """The end of a pass names the epochs that it is the end of."""
    master.epochs = 2
    master.answers.put(pb.LeaseResponse(next=pb.LeaseResponse.PASS_OVER))
    assert taken(tasks) == PassOver(2)
    assert master.expect() == (1, 0)
    with pytest.raises(queue.Empty):
        master.asked.get(timeout=0.1)
    master.epochs = 3
    (first,) = master.grant(pb.TASK_TRAIN)
    assert lease_id(taken(tasks)) == first


def test_tasks_in_hand_are_given_while_no_master_answers(
    master: Master, tasks: LeasedTasks
) -> None:
    ids = begin(master, tasks, *[pb.TASK_TRAIN] * 5)
    assert [lease_id(taken(tasks)) for _ in ids] == ids
    master.expect()  # in vain
    assert tasks.get(0.1) is None


def test_what_is_more_urgent_than_training_comes_first(master: Master, tasks: LeasedTasks) -> None:
    train, *_ = begin(master, tasks, pb.TASK_TRAIN, pb.TASK_TRAIN, pb.TASK_TRAIN)
    assert lease_id(taken(tasks)) == train
    master.expect()
    one, two = master.grant(pb.TASK_EVALUATE, pb.TASK_EVALUATE)
    order = [one, two, train + 1, train + 2]
    until(tasks, lambda: len(tasks._answers) == 4)
    assert [lease_id(taken(tasks)) for _ in order] == order


def test_a_task_is_prepared_if_it_has_records(master: Master, tasks: LeasedTasks) -> None:
    error = ValueError("of feed")

    def prepare(lease: HeldLease) -> Any:
        raise error

    tasks._prepare = prepare
    (first, second) = master.grant(pb.TASK_SNAPSHOT, pb.TASK_TRAIN)
    snapshot, failed = taken(tasks), taken(tasks)
    assert isinstance(snapshot, ModelTask)
    assert snapshot.lease.lease_id == first
    assert isinstance(failed, TaskFailed)
    assert failed.lease is not None
    assert (failed.error, failed.lease.lease_id) == (error, second)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), SystemExit(1), Panic("rust")],
    ids=lambda error: type(error).__name__,
)
def test_no_exception_ends_the_thread_that_prepares(master: Master, error: BaseException) -> None:
    """A BaseException of user code in this thread is no interrupt; the task fails by it."""
    errors = [error]

    def prepare(lease: HeldLease) -> Any:
        if errors:
            raise errors.pop()
        return lambda offset: iter(())

    tasks = TaskPrefetcher(master, prepare)  # type: ignore[arg-type]
    (first, second) = master.grant(pb.TASK_TRAIN, pb.TASK_TRAIN)
    tasks.start()
    failed = taken(tasks)
    assert isinstance(failed, TaskFailed)
    assert failed.lease is not None
    assert (failed.error, failed.lease.lease_id) == (error, first)
    assert lease_id(taken(tasks)) == second
    tasks.stop()
    master.answers.put(pb.LeaseResponse())


def test_the_memory_of_the_records_of_a_task_is_released(master: Master) -> None:
    """Arrow would keep all that it needed to decode them: here, 180 MB."""

    def prepare(lease: HeldLease) -> Any:
        numbers = pa.array(np.arange(1 << 17))
        table = pa.table({str(n): pc.add(numbers, n) for n in range(60)})
        table.take(np.arange(1 << 17)[::-1])
        return lambda offset: iter(())

    tasks = TaskPrefetcher(master, prepare)  # type: ignore[arg-type]
    before = psutil.Process().memory_info().rss
    master.grant(*3 * [pb.TASK_TRAIN])
    tasks.start()
    for _ in range(3):
        taken(tasks)
    assert psutil.Process().memory_info().rss - before < 110 << 20
    tasks.stop()
    master.answers.put(pb.LeaseResponse())


def test_other_servers_make_what_was_leased_void(master: Master, tasks: LeasedTasks) -> None:
    begin(master, tasks, *[pb.TASK_TRAIN] * 2)
    taken(tasks)
    master.expect()
    cluster = pb.Cluster(incarnation=2)
    master.answers.put(pb.LeaseResponse(next=pb.LeaseResponse.CLUSTER_CHANGED, cluster=cluster))
    until(tasks, lambda: isinstance(tasks._answers[-1], ServersChanged))
    assert taken(tasks) == ServersChanged(cluster)
    (renewed,) = master.grant(pb.TASK_TRAIN)
    answer = taken(tasks)
    assert (lease_id(answer), answer.lease.incarnation) == (renewed, 2)  # type: ignore[union-attr]


def test_tasks_that_are_given_up_are_returned_and_no_more_leased(
    master: Master, tasks: LeasedTasks
) -> None:
    first, second, third = begin(master, tasks, *[pb.TASK_TRAIN] * 3)
    assert lease_id(taken(tasks)) == first
    master.expect()
    tasks.give_up()
    assert [master.declined.get(timeout=HANG_S) for _ in range(2)] == [second, third]
    (late,) = master.grant(pb.TASK_TRAIN)  # it was asked for before
    assert master.declined.get(timeout=HANG_S) == late
    assert master.asked.empty()
    (again,) = master.grant(pb.TASK_TRAIN)
    assert lease_id(taken(tasks)) == again


def test_tasks_that_were_not_begun_are_given_back_for_an_idle_worker(
    master: Master, tasks: LeasedTasks
) -> None:
    first, second, summary, third = begin(
        master, tasks, pb.TASK_TRAIN, pb.TASK_TRAIN, pb.TASK_SUMMARIZE, pb.TASK_TRAIN
    )
    assert isinstance(taken(tasks), ModelTask)
    assert lease_id(taken(tasks)) == first
    master.expect()
    master.grant()
    for _ in range(2):  # the second time there is nothing left
        tasks.give_back()
        wait_for(lambda: not tasks._asked_back)  # nobody is notified
    assert [master.declined.get(timeout=HANG_S) for _ in range(2)] == [second, third]
    assert summary not in master.declined.queue
    assert master.asked.empty()
    (again,) = master.grant(pb.TASK_TRAIN)
    assert lease_id(taken(tasks)) == again


def test_an_end_and_an_error_are_told(master: Master, tasks: LeasedTasks) -> None:
    error = MasterLostError("gone")
    master.answers.put(error)
    assert taken(tasks) == TaskFailed(error, None)
    master.answers.put(pb.LeaseResponse(next=pb.LeaseResponse.DRAIN))
    assert taken(tasks) == NoMoreTasks(leave=True)
    tasks._thread.join(HANG_S)
    assert not tasks._thread.is_alive()
