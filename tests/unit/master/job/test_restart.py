"""Every part of a job comes back from what a restarted master finds."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from master.state.actions import CommitLocal, Release, SaveServers, Start
from master.state.calls import worker_calls
from master.state.job.restart import FORMAT, after_failure
from tests.unit.master.script_jobs import on_nodes
from tests.unit.master.world import every_record, running
from torch_edl.wire import master_pb2 as pb


def named(lease: pb.LeaseMessage, life: int = 1) -> pb.LeasedTask:
    return pb.LeasedTask(kind=lease.kind, task_id=lease.task_id, incarnation=life)


def test_a_state_says_the_same_after_it_was_read() -> None:
    w = running(workers=2, eval_records=40, eval_every=2, dir="/ck", every=3)
    w.work(tasks=3)
    w.lease(0), w.lease(1)
    w.scale(3)
    w.tick()
    left = w.state()
    again = w.restart(left)
    assert again.actions == [Release(w.fleet.cluster().servers, "j"), again.actions[-1]]
    assert isinstance(again.actions[-1], SaveServers), "the checkpoint that was under way"
    told = again.state()
    # The new master has no file of events here, and may not use a number twice.
    assert told["lifecycle"].pop("events") > left["lifecycle"].pop("events")
    counts = {kind: n for kind, _, n in told["lifecycle"].pop("counts")}
    before = {kind: n for kind, _, n in left["lifecycle"].pop("counts")}
    processes = len(list(again.fleet))
    assert counts["process_changed"] == before["process_changed"] + processes, "each once more"
    assert counts["master_restarted"] == 1
    assert left["lifecycle"]["outages"]["newest"] == []
    assert len(told["lifecycle"]["outages"].pop("newest")) == 1, "that of the restart"
    left["lifecycle"]["outages"].pop("newest")
    for part in ("lifecycle", "members", "tasks", "preparation", "milestones"):
        assert told[part] == left[part], part
    for state in (told, left):
        for process in state["fleet"]["processes"]:
            process.pop("started_at"), process.pop("heard_at", None)
        state["fleet"].pop("planned_at")
    assert told["fleet"] == left["fleet"]
    assert told["job"] == {**left["job"], "restarts": 1}


def names(state: Any) -> set[str]:
    """Return the names of all fields in a state."""
    if isinstance(state, dict):
        return set(state).union(*map(names, state.values()))
    return set().union(*map(names, state)) if isinstance(state, list) else set()


def test_a_state_with_other_fields_has_another_format() -> None:
    jobs = [
        running(eval_records=4, eval_every=2, durability={"mode": "replica"}, spares=1),
        running(strategy="local", dir="/ck", every=2),
        on_nodes(),
    ]
    jobs[1].work(tasks=1)
    found = set().union(*(names(w.state()) for w in jobs))
    digest = hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest()[:8]
    assert (FORMAT, digest) == (17, "d5cc86da"), "raise FORMAT, and note the new digest here"


def test_a_lease_that_the_new_master_does_not_know_is_taken_over() -> None:
    w = running(workers=2)
    left = w.state()
    unknown = w.task()
    again = w.restart(left)
    other = again.task(0, held=[unknown.lease_id], tasks=[named(unknown)])
    assert (other.task_id, other.lease_id) == (1, (1 << 32) + 1), "numbers are never used again"
    assert again.complete(0, unknown)
    assert again.job.done()[0] == 4
    assert not again.complete(0, unknown), "it counts once"


def test_the_first_records_of_a_lease_that_the_new_master_does_not_know_are_kept() -> None:
    w = running(workers=2)
    left = w.state()
    unknown = w.task()
    again = w.restart(left)
    first = pb.FirstRecords(records=2, order=0.5, framework="torch")
    request = pb.BeginTaskRequest(
        worker_id=0, lease_id=unknown.lease_id, task=named(unknown), first=first
    )
    again.call(worker_calls.begin_task, request)
    again.kill(0)
    assert again.task(1).first == first


@pytest.mark.parametrize("how", ["leased to another", "done", "of an earlier model", "stranger"])
def test_a_lease_that_cannot_be_taken_over_counts_for_nothing(how: str) -> None:
    w = running(workers=2)
    left = w.state()
    unknown = w.task()
    again = w.restart(left)
    if how in ("leased to another", "done"):
        newer = again.task(1)
        assert newer.task_id == unknown.task_id
        assert how != "done" or again.complete(1, newer)
    done = again.job.done()
    request = pb.CompleteTaskRequest(
        worker_id=7 if how == "stranger" else 0,
        lease_id=unknown.lease_id,
        task=named(unknown, life=0 if how == "of an earlier model" else 1),
    )
    assert not again.call(worker_calls.complete_task, request).known
    assert again.job.done() == done
    if how == "leased to another":
        assert again.complete(1, newer)


def test_an_evaluation_under_way_keeps_what_was_merged() -> None:
    w, whole = running(kind="evaluate"), running(kind="evaluate")
    for _ in range(3):
        w.do(0, w.task())
    again = w.restart()
    again.work()
    assert again.job.tasks.evaluations.results[0].metrics == {"loss": 0.25}
    assert (again.outcome.state, again.job.done()[0]) == ("finished", 32)
    whole.work()
    assert again.job.tasks.evaluations.results == whole.job.tasks.evaluations.results


def test_the_commit_of_what_a_worker_wrote_is_done_again() -> None:
    """The worker may be gone by then: what it wrote is all that is left of the model."""
    w = running(strategy="local", dir="/ck", every=100)
    w.work(tasks=2)
    w.job.stop("enough", w.now)
    w.tick()
    snapshot = w.call(worker_calls.lease_snapshot, pb.LeaseSnapshotRequest(worker_id=0))
    w.do(0, snapshot.lease)
    again = w.restart()
    assert again.job.state == "stopping"
    commit = again.effect(CommitLocal)
    assert (str(commit.directory), commit.manifest.steps) == (snapshot.lease.directory, 4)


def test_a_job_that_has_ended_ends_again_and_one_that_failed_may_be_continued() -> None:
    w = running(workers=2, durability={"mode": "journal"})
    w.work(tasks=3)
    w.fail(0, w.task(), "ValueError: bad", fatal=True, traceback="in feed")
    again = w.restart()
    assert again.outcome == w.outcome
    assert not [a for a in again.actions if isinstance(a, Start)]
    state = w.state()
    goes_on = w.restart(after_failure(state))
    assert goes_on.outcome is None
    assert goes_on.job.done() == w.job.done()
    assert goes_on.state()["tasks"]["main"]["failures"] == []
    finished = {**state, "lifecycle": {**state["lifecycle"], "outcome": {"state": "finished"}}}
    assert after_failure(finished) == finished


def test_a_process_that_was_to_be_stopped_is_told_again() -> None:
    w = running(workers=2)
    w.scale(1)
    w.tick()
    w.now += 5
    for worker in (0, 1):
        w.beat(worker)
    w.job.tick(w.now + 6)  # the master is killed before it does what this says
    again = w.restart(now=w.now + 6)
    assert [w.fleet.process("worker", id).state for id in (0, 1)] == ["running", "stopping"]
    assert again.fleet.process("worker", 1).state == "exited"


def test_a_worker_that_leaves_has_the_rest_of_its_time_under_the_next_master() -> None:
    w = running(strategy="allreduce")
    w.meet()
    w.beat(0, leaving=True)
    w.tick(9)
    again = w.restart(now=w.now + 1000)
    again.now += 1
    again.fleet.from_state(w.state()["fleet"], again.now)
    assert again.state()["fleet"]["planned_at"] == again.now, "noted before the first plan"
    for _ in range(4):
        again.tick((w.config.cluster.grace_s - 8) / 4)
        assert again.beat(0).drain
    assert again.stopped == []
    again.tick(2)
    assert [(stop.role, stop.id) for stop in again.stopped] == [("worker", 0)]


@pytest.mark.parametrize("seed", range(10))
def test_masters_are_killed_at_random(seed: int) -> None:
    """Each new one knows what the one before had noted some time ago. The servers know better: they
    have every record that was pushed, and no master may take another one for done."""
    draw = random.Random(seed)
    w = running(workers=3, epochs=2)
    trained: set[tuple[int, str, int]] = set()
    held: dict[int, list[pb.LeaseMessage]] = {id: [] for id in w.alive}
    left = w.state()
    for _ in range(3000):
        if w.outcome is not None:
            break
        id, action = draw.choice(sorted(w.alive)), draw.random()
        mine = held[id]
        if action < 0.5 and len(mine) < 3:
            ids, tasks = [lease.lease_id for lease in mine], list(map(named, mine))
            answer = w.lease(id, incarnation=1, held=ids, tasks=tasks)
            if draw.random() < 0.9:  # else it is lost
                mine += answer.leases if answer is not None else []
        elif action < 0.8 and mine:
            lease = mine.pop(0)
            trained |= {(lease.epoch, lease.shard, i) for i in range(lease.start, lease.end)}
            request = pb.CompleteTaskRequest(
                worker_id=id, lease_id=lease.lease_id, task=named(lease)
            )
            if draw.random() < 0.9:  # else the master was killed before
                w.call(worker_calls.complete_task, request)
        elif action < 0.9:
            left = w.state()
        elif action < 0.95:
            w = w.restart(left)
        w.tick(0.01)
    assert w.outcome is not None, "it never ended"
    assert trained == set(every_record(epochs=2))
