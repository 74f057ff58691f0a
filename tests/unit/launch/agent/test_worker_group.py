"""What follows from the end of a worker, and the output of a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torch_edl.launch.agent.worker_group import (
    MAX_KILLED,
    MAX_OOM_KILLED,
    RestartDecision,
    RestartPolicy,
    WorkerGroup,
)
from torch_edl.launch.agent.workers import STDERR, STDOUT, LocalWorker

REPLACE = RestartDecision.REPLACE


def decide(
    policy: RestartPolicy,
    code: int,
    *,
    stopping: bool = False,
    steps: int = 0,
    started_at: float | None = None,
    now: float = 0.0,
) -> RestartDecision:
    """A worker that is half a second old, if nothing else is said."""
    started_at = now - 0.5 if started_at is None else started_at
    return policy.decide(code, stopping=stopping, steps=steps, started_at=started_at, now=now)


@pytest.mark.parametrize(
    ("code", "stopping", "decision"),
    [
        (0, False, RestartDecision.DONE),
        (0, True, RestartDecision.DONE),
        (-9, False, REPLACE),
        (-15, False, REPLACE),
        (143, False, REPLACE),
        (137, False, REPLACE),
        (130, False, RestartDecision.FAIL),
        (-15, True, RestartDecision.STOPPED),
        (1, True, RestartDecision.STOPPED),
        (1, False, RestartDecision.FAIL),
        (-11, False, RestartDecision.FAIL),
    ],
)
def test_what_follows_from_an_end(code: int, stopping: bool, decision: RestartDecision) -> None:
    assert decide(RestartPolicy(max_restarts=0), code, stopping=stopping) is decision


def test_exit_code_0_inside_a_loop_is_a_failure() -> None:
    policy = RestartPolicy(max_restarts=1)
    ends = [
        policy.decide(0, in_loop=True, stopping=False, steps=7, started_at=now, now=now + 1)
        for now in (0, 10)
    ]
    assert ends == [REPLACE, RestartDecision.FAIL]


def test_failures_use_up_the_restarts_and_losses_do_not() -> None:
    policy = RestartPolicy(max_restarts=2)
    codes = [1, -9, -11, -15, 1]
    decisions = [decide(policy, code, now=now) for now, code in enumerate(codes)]
    assert decisions == [REPLACE] * 4 + [RestartDecision.FAIL]


def test_failures_of_one_round_count_once() -> None:
    policy = RestartPolicy(max_restarts=2)
    # What is known of the steps comes late.
    for now, steps in ((50, 100), (50, 100), (51, 103), (55, 103)):
        assert decide(policy, 1, steps=steps, started_at=0, now=now) is REPLACE
    assert policy.restarts == 1
    # The second round: one of the replacements, then the other one.
    for started_at in (50.2, 51.5):
        assert decide(policy, 1, steps=103, started_at=started_at, now=60) is REPLACE
    assert policy.restarts == 2
    assert decide(policy, 1, steps=103, started_at=61, now=70) is RestartDecision.FAIL


def test_a_failure_long_after_another_one_is_a_round_of_its_own() -> None:
    policy = RestartPolicy(max_restarts=1)
    assert decide(policy, 1, steps=100, now=50) is REPLACE
    assert decide(policy, 1, steps=900, now=500) is RestartDecision.FAIL


def test_losses_in_a_row_are_replaced_after_a_pause() -> None:
    policy = RestartPolicy(max_restarts=0)
    for _ in range(4):
        assert decide(policy, -15, steps=7) is REPLACE
    assert policy.pause_s > 0
    assert decide(policy, -9, steps=8) is REPLACE, "there was progress"
    assert policy.pause_s == 0


def test_kills_before_the_first_step_end_the_job() -> None:
    policy = RestartPolicy(max_restarts=0)
    for _ in range(MAX_KILLED):
        assert decide(policy, -9) is REPLACE
        assert decide(policy, -15) is REPLACE, "that was no lack of memory"
    assert decide(policy, 137) is RestartDecision.FAIL


def test_a_few_kills_for_lack_of_memory_before_the_first_step_end_the_job() -> None:
    policy = RestartPolicy(max_restarts=0)
    kill = {"stopping": False, "steps": 0, "started_at": 0.0, "now": 0.5}
    ends = [policy.decide(-9, oom=True, **kill) for _ in range(MAX_OOM_KILLED + 1)]
    assert ends == [REPLACE] * MAX_OOM_KILLED + [RestartDecision.FAIL]
    assert policy.decide(-9, oom=True, **kill | {"steps": 1}) is REPLACE, "it fits since then"


@pytest.mark.parametrize("code", [-9, -15, 137, 143])
def test_preemptions_end_no_job_that_has_made_a_step(code: int) -> None:
    policy = RestartPolicy(max_restarts=0)
    assert {decide(policy, code, steps=1) for _ in range(1000)} == {REPLACE}


def test_preemptions_long_after_the_start_end_no_job() -> None:
    """A script that does not use torch_edl reports no steps."""
    policy = RestartPolicy(max_restarts=0)
    ends = [decide(policy, -9, started_at=0, now=61) for _ in range(1000)]
    assert set(ends) == {REPLACE}


def test_a_group_is_done_when_all_wanted_ranks_are_and_none_runs() -> None:
    workers = SimpleNamespace(running=[1], reap=lambda: [end])
    group = WorkerGroup(workers, wanted=2, max_restarts=0)
    done = []
    for rank, running in ((0, [1]), (1, [2]), (1, [])):
        end = SimpleNamespace(
            code=0,
            open_loop=None,
            why="",
            local_rank=rank,
            started_at=0.0,
            stopping=False,
        )
        workers.running = running  # rank 2 is surplus: it may still write what it has
        group.reap(steps=1, replaces=True, now=1.0)
        done.append(group.is_done)
    assert done == [False, False, True]


def test_the_output_of_a_worker_is_read_by_whole_lines_and_at_its_end_whole(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with open(path, "wb") as file:
        process = subprocess.Popen([sys.executable, "-c", ""], stdout=file, start_new_session=True)
    worker = LocalWorker(
        local_rank=0,
        rank=0,
        pid=process.pid,
        files={STDOUT: str(path)},
        error_file=os.devnull,
        started_at=0.0,
    )
    path.write_text("a\nunfinished")
    assert list(worker.output(now=0.0)) == [("stdout", b"a")]
    assert list(worker.output(now=0.0)) == []
    worker.code = process.wait()
    assert list(worker.output(now=0.0)) == [("stdout", b"unfinished")]
    assert list(worker.output(now=0.0, final=True)) == []
    assert worker.log == str(path)


def test_the_tracebacks_of_two_workers_are_shown_one_after_the_other(tmp_path: Path) -> None:
    workers = [
        LocalWorker(
            local_rank=rank,
            rank=rank,
            pid=0,
            files={STDERR: str(tmp_path / f"{rank}.log")},
            error_file=os.devnull,
            started_at=0.0,
        )
        for rank in range(2)
    ]
    started: Any = SimpleNamespace(
        local_ranks=set(), are_ready=True, stop=lambda *_, **__: None, start=lambda *_: workers
    )
    group = WorkerGroup(started, wanted=2, max_restarts=0)
    group.balance(None, grace_s=0.0, now=0.0)  # type: ignore[arg-type]
    written = [b"Traceback (most recent call last):\n", b"  File a\n", b"  File b\n", b"KeyError\n"]
    shown = []
    for tenth, line in enumerate([*written, b"", b"", b""]):
        for worker in workers:
            with open(worker.files[STDERR], "ab") as file:
                file.write(line)
        shown += [rank for rank, _, _ in group.output(now=0.1 * tenth, final=False)]
    assert shown == [0] * 4 + [1] * 4
