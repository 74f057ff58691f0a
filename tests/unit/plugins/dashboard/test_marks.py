"""Texts as the master and ``torch-edl chaos`` write them."""

from __future__ import annotations

import pytest

from torch_edl.plugins.dashboard.marks import Mark, read

RETURNED = "its tasks were returned to the queue"


@pytest.mark.parametrize(
    ("level", "text", "mark"),
    [
        (
            "info",
            "worker-1 was taken away: preempted by a pod of higher priority: first, as asked",
            Mark("preempted", "worker-1"),
        ),
        (
            "warning",
            f"worker-0 ended with signal 9; {RETURNED}",
            Mark("lost", "worker-0", how="signal 9"),
        ),
        (
            "warning",
            f"worker-3 declared lost: no heartbeat for 30 s; {RETURNED}",
            Mark("lost", "worker-3", how="lost: no heartbeat for 30 s", silent_s=30),
        ),
        (
            "warning",
            (
                f"worker-3 declared lost: no step for 600 s (--task-timeout); {RETURNED}. Its "
                "threads:\nchaos: worker-1 (pid 5) killed"
            ),
            Mark(
                "lost",
                "worker-3",
                how="lost: no step for 600 s (--task-timeout)",
                silent_s=600,
            ),
        ),
        (
            "warning",
            "ps-1 ended with signal 9; another server takes over shard 1, and nothing is lost",
            Mark("lost", "ps-1", how="signal 9"),
        ),
        (
            "error",
            (
                "ps-0 ended with signal 9; the servers restart from /ckpt/7, and train 1,234 "
                "records again"
            ),
            Mark("restored", "ps-0", how="signal 9", again=1234),
        ),
        (
            "error",
            (
                "worker-0 ended with signal 9; the worker restarts from the beginning, there is no "
                "checkpoint, and trains 64 records again"
            ),
            Mark("restored", "worker-0", how="signal 9", again=64),
        ),
        (
            "error",
            (
                "no worker that is left has the model; the workers restart from the beginning, "
                "there is no checkpoint"
            ),
            Mark("restored"),
        ),
        ("info", "worker-1 ended with exit code 0, as asked", Mark("left", "worker-1")),
        ("info", "worker-1 left", Mark("left", "worker-1")),
        (
            "warning",
            "ps-2 is slow: 31% of the median rate of 3 servers for 30 s; its CPU limit stops it",
            Mark("slow", "ps-2"),
        ),
        ("info", "worker-1 is no longer slow", Mark("slow", "worker-1")),
        (
            "info",
            "worker-1 is preempted (/f exists): it returns its tasks",
            Mark("left", "worker-1"),
        ),
        (
            "info",
            (
                "worker-1 ended with exit code 0, as asked; preempted: left in 0.4 s, 1,000 of its "
                "records are trained again"
            ),
            Mark("preempted", "worker-1", again=1000),
        ),
        (
            "info",
            "ps-0 is preempted (http://h answers 200): the model moves to other servers",
            Mark("preempted", "ps-0"),
        ),
        ("info", "ring 3: 4 workers", Mark("ring")),
        (
            "info",
            "the model moves from 2 to 3 parameter servers; nothing is rolled back",
            Mark("move"),
        ),
        ("warning", "the master was restarted: 2 workers continue", Mark("master", "master-0")),
        ("warning", "chaos: ps-1 (pid 17677) killed", Mark("fault", "ps-1")),
        ("info", "chaos: the last fault is over; waiting for progress", Mark("chaos")),
        (
            "warning",
            "ps-0 lacks 1,000 records that it had: its machine lost power; they are trained again",
            Mark("repaired", "ps-0", again=1000),
        ),
        ("info", "evaluation at step 504: accuracy 0.99", Mark("evaluation")),
        ("info", "checkpoint /ckpt/step-7", Mark("checkpoint")),
        ("info", "finished", Mark("end")),
        (
            "info",
            "strategy ps: asked for with --strategy ps, --ps, --durability or --epochs stream",
            Mark("other"),
        ),
    ],
)
def test_what_an_event_tells(level: str, text: str, mark: Mark) -> None:
    assert read(level, text) == mark
