"""What is said of a storm, by what the status of the job was."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from torch_edl.config import ClusterConfig, DurabilityConfig, JobConfig
from torch_edl.plugins.chaos.plan import StormPlan, faults
from torch_edl.plugins.chaos.run import restraint, risks
from torch_edl.plugins.chaos.storm import Blow, Target
from torch_edl.plugins.chaos.verdict import StatusWatch, StormVerdict
from torch_edl.wire import master_pb2 as pb


def status(done: int, *processes: tuple[str, int, int], **fields: Any) -> pb.GetStatusResponse:
    given = {"state": "running", "job": "j", **fields}
    found = pb.GetStatusResponse(records={"done": done, "total": 100}, **given)
    for role, id, pid in processes:
        found.processes.add(role=role, id=id, pid=pid, state="running")
    return found


def watch(*, may_roll_back: bool = False, **fields: Any) -> StatusWatch:
    first = status(10, ("master", 0, 1), ("ps", 0, 2), **fields)
    return StatusWatch(first, 0.0, seed=3, may_roll_back=may_roll_back)


def verdict(
    of: StatusWatch, now: float, *, state: str = "running", error: str = ""
) -> StormVerdict:
    return of.verdict(now, state=state, error=error, missed=0)


KILL = Blow(Target("ps", 0, 2), signal.SIGKILL)


def test_a_job_that_goes_on_kept_its_promise() -> None:
    w = watch()
    w.struck(KILL, 0.5)
    w.saw(status(20, ("master", 0, 1), ("ps", 0, 2)), 1.0)
    w.saw(status(30, ("master", 0, 1), ("ps", 1, 5)), 2.0)
    found = verdict(w, 2.5)
    assert (found.held, found.problems) == (True, [])
    assert (found.kills, found.replaced) == ({"ps": 1}, {"ps": 1})
    assert found.records == {"before": 10, "after": 30, "total": 100}
    assert found.stalls.times == 0
    assert found.rolled_back == {"times": 0, "records": 0}
    assert w.counts() == "1 ps"


def test_a_stall_is_a_time_without_progress() -> None:
    w = watch()
    w.saw(status(20), 1.0)
    w.saw(status(20), 3.0)
    w.saw(status(21), 5.5)
    w.saw(status(22), 6.0)
    found = verdict(w, 9.0)
    assert (found.stalls.times, found.stalls.longest_s) == (2, 4.5)


def test_an_absent_master_is_told_apart() -> None:
    w = watch()
    for at, seen in ((1.0, status(20)), (1.3, None), (2.0, None), (2.5, status(40))):
        w.saw(seen, at)
    found = verdict(w, 2.6)
    assert (found.master_away.times, found.master_away.longest_s) == (1, 1.5)
    assert found.stalls.times == 0


def test_what_nobody_could_see_is_no_stall() -> None:
    w = watch()
    for at, seen in ((1.0, status(20)), (1.3, None), (6.0, status(20)), (6.5, status(40))):
        w.saw(seen, at)
    w.saw(None, 7.0)
    found = verdict(w, 12.0)
    assert (found.master_away.longest_s, found.stalls.times) == (5.0, 0)
    for at in (12.5, 15.0):  # but workers that wait for the master that is back are one
        w.saw(status(40), at)
    assert verdict(w, 15.0).stalls.times == 1


def test_a_rollback_breaks_the_promise_only_where_there_was_one() -> None:
    for may in (False, True):
        w = watch(may_roll_back=may, rolled_back={"times": 1, "records": 7})
        w.struck(KILL, 0.5)
        w.saw(status(5, rolled_back={"times": 2, "records": 12}), 1.0)
        w.saw(status(6, rolled_back={"times": 2, "records": 12}), 2.0)
        found = verdict(w, 2.0)
        assert found.rolled_back == {"times": 1, "records": 5}
        assert found.held is may
        assert found.problems == ([] if may else ["5 records were rolled back"])


def test_updates_that_a_repair_left_out_are_lost() -> None:
    w = watch(updates_lost=2)
    w.saw(status(20, updates_lost=4), 1.0)
    w.saw(status(30, updates_lost=5), 1.5)
    found = verdict(w, 2.0)
    assert (found.held, found.updates_lost) == (False, 3)
    assert found.problems == ["3 updates in damaged records of journals are lost (--repair)"]


def test_a_job_without_progress_after_the_last_fault() -> None:
    w = watch()
    w.saw(status(20), 1.0)
    w.struck(KILL, 1.5)
    w.saw(status(20), 61.0)
    found = verdict(w, 61.0)
    assert found.problems == ["no record was done in the last 60 s"]


@pytest.mark.parametrize(
    ("state", "held"), [("running", None), ("finished", True), ("dead", False)]
)
def test_a_storm_that_the_user_ended_says_nothing_of_a_job_that_runs(
    state: str, held: bool | None
) -> None:
    w = watch()
    w.struck(KILL, 1.5)
    found = w.verdict(2.0, state=state, error="", missed=0, is_cut=True)
    assert (found.held, found.problems) == (held, ["the job is dead"] if held is False else [])
    assert found.text.startswith("ended before a verdict" if held is None else "the promise")


def test_progress_counts_from_after_the_fault() -> None:
    """What a dead worker had not reported was done before, and is done again."""
    w = watch()
    w.struck(KILL, 1.0)
    for at, done in ((0.9, 30), (1.1, 30), (1.2, 25), (1.3, 25)):
        w.saw(status(done), at)
        assert not w.progressed
    w.saw(status(26), 1.4)
    assert w.progressed


def test_a_job_that_ended() -> None:
    w = watch()
    w.struck(KILL, 0.5)
    assert verdict(w, 2.0, state="finished").held
    w = watch()
    found = verdict(w, 2.0, state="failed", error="no memory")
    assert found.problems == ["the job is failed: no memory"]
    assert not found.held
    assert found.as_dict()["stalls"] == {"times": 0, "longest_s": 0.0}


def job(mode: str) -> JobConfig:
    return JobConfig(
        name="j",
        model_file="/m.py",
        cluster=ClusterConfig(servers=2),
        durability=DurabilityConfig(mode=mode),
    )


@pytest.mark.parametrize(
    ("kill", "strategy", "mode", "checkpoint", "risk"),
    [
        ("ps=1", "ps", "checkpoint", "/ck/step-7", "all servers from a checkpoint (/ck/step-7 or"),
        ("ps=1", "ps", "checkpoint", "", "from the beginning"),
        ("ps=1,worker=2", "ps", "journal", "", ""),
        ("worker=2", "local", "checkpoint", "", "the one worker"),
        ("worker=2", "allreduce", "checkpoint", "", "if all 2 die"),
    ],
)
def test_what_a_storm_may_cost(
    kill: str, strategy: str, mode: str, checkpoint: str, risk: str
) -> None:
    plan = StormPlan(faults=faults(kill=kill, every_s=3.0), for_s=9.0)
    seen = status(1, ("worker", 0, 1), ("worker", 1, 2), strategy=strategy, checkpoint=checkpoint)
    told = risks(plan, job(mode), seen)
    assert len(told) == bool(risk)
    assert risk in "".join(told)


@pytest.mark.parametrize(
    ("mode", "pause", "waits"),
    [
        ("replica", "ps=1:1s", True),
        ("replica", "worker=1:1s", False),
        ("journal", "ps=1:1s", False),
    ],
)
def test_servers_with_replicas_are_struck_one_at_a_time(mode: str, pause: str, waits: bool) -> None:
    plan = StormPlan(faults=faults(pause=pause, every_s=3.0), for_s=9)
    assert ("must not die together" in restraint(plan, job(mode))) == waits
