"""The mirror of the pods and the pace of calls, with a clock of their own."""

from __future__ import annotations

from typing import Any

import pytest

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.failures import ExpiredError, NoAnswerError
from torch_edl.plugins.kubernetes.cluster.pod_state import read_pod
from torch_edl.plugins.kubernetes.cluster.watch import (
    Change,
    ListPause,
    Mirror,
    PodGone,
    PodSeen,
    WatchEvent,
)


def pod(id: int, version: int, *, uid: str = "", phase: str = "Pending") -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"ctr-worker-{id}",
            "uid": uid or f"u{id}",
            "resourceVersion": str(version),
            "labels": names.labels("ctr", "worker", id, "ab"),
        },
        "status": {"phase": phase},
    }


def listed(mirror: Mirror, *pods: dict[str, Any], version: str = "10") -> list[Change]:
    return mirror.listed(map(read_pod, pods), version)


def apply(mirror: Mirror, type: str, object: dict[str, Any]) -> list[Change]:
    return mirror.apply(WatchEvent(type, object))


def told(changes: list[Change]) -> list[tuple[str, int, str]]:
    return [(type(c).__name__, c.pod.id, c.pod.phase) for c in changes if hasattr(c, "pod")]


# ---- the mirror ----


def test_a_first_list_makes_every_pod_new() -> None:
    mirror = Mirror()
    assert told(listed(mirror, pod(0, 1), pod(1, 2))) == [
        ("PodSeen", 0, "Pending"),
        ("PodSeen", 1, "Pending"),
    ]
    assert mirror.version == "10"


def test_another_list_says_only_what_has_changed() -> None:
    mirror = Mirror()
    listed(mirror, pod(0, 1), pod(1, 2), pod(2, 3))
    found = listed(mirror, pod(0, 1), pod(2, 20, phase="Running"), pod(3, 21), version="30")
    assert told(found) == [
        ("PodGone", 1, "Pending"),
        ("PodSeen", 2, "Running"),
        ("PodSeen", 3, "Pending"),
    ]
    assert mirror.version == "30"


def test_an_event_that_comes_twice_changes_nothing() -> None:
    mirror = Mirror()
    listed(mirror)
    assert told(apply(mirror, "ADDED", pod(0, 11))) == [("PodSeen", 0, "Pending")]
    assert apply(mirror, "ADDED", pod(0, 11)) == []
    assert told(apply(mirror, "MODIFIED", pod(0, 12, phase="Running"))) == [
        ("PodSeen", 0, "Running")
    ]
    assert apply(mirror, "MODIFIED", pod(0, 12, phase="Running")) == []
    assert told(apply(mirror, "DELETED", pod(0, 13, phase="Failed"))) == [("PodGone", 0, "Failed")]
    assert apply(mirror, "DELETED", pod(0, 13, phase="Failed")) == []
    assert mirror.version == "13"


def test_a_bookmark_moves_the_version_alone() -> None:
    mirror = Mirror()
    listed(mirror, pod(0, 1))
    bookmark = {"metadata": {"resourceVersion": "77"}}
    assert apply(mirror, "BOOKMARK", bookmark) == []
    assert mirror.version == "77"
    assert [pod.name for pod in mirror] == ["ctr-worker-0"]


def test_a_pod_of_the_same_name_is_another_one() -> None:
    mirror = Mirror()
    listed(mirror, pod(0, 1, uid="old"))
    found = listed(mirror, pod(0, 9, uid="new"))
    assert [type(c) for c in found] == [PodGone, PodSeen]
    assert [c.pod.uid for c in found if hasattr(c, "pod")] == ["old", "new"]


# ---- the pace ----


def pace() -> ListPause:
    return ListPause(jitter=lambda: 1.0)


def test_pods_are_listed_once_and_watched_from_there() -> None:
    found = pace()
    assert found.lists
    found.begins(0.0)
    found.listed()
    assert not found.lists
    found.begins(0.0)
    assert found.ended(300.0) == 0.0
    assert not found.lists


def test_an_expired_version_has_the_pods_listed_at_once() -> None:
    found = pace()
    found.listed()
    found.begins(100.0)
    assert found.failed(ExpiredError("410", status=410), 100.1) == 0.0
    assert found.lists


def test_expired_again_and_again_backs_off() -> None:
    found, waits = pace(), []
    for i in range(8):
        found.begins(float(i))
        found.listed()
        waits.append(found.failed(ExpiredError("410", status=410), float(i)))
        assert found.lists
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_a_silent_watch_has_the_pods_listed() -> None:
    found = pace()
    found.listed()
    found.begins(0.0)
    assert found.failed(NoAnswerError("timed out"), 95.0) == 0.5
    assert found.lists


def test_a_watch_that_breaks_is_continued_where_it_was() -> None:
    found = pace()
    found.listed()
    found.begins(0.0)
    assert found.failed(NoAnswerError("connection reset"), 30.0) == 0.5
    assert not found.lists


def test_a_server_that_stays_away_is_asked_ever_more_rarely() -> None:
    found, now, waits = pace(), 0.0, []
    found.listed()
    for _ in range(9):
        found.begins(now)
        waits.append(found.failed(NoAnswerError("refused"), now))
        now += waits[-1]
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert found.lists


def test_a_watch_that_lasted_forgives_earlier_failures() -> None:
    found = pace()
    found.listed()
    for _ in range(5):
        found.begins(0.0)
        found.failed(NoAnswerError("refused"), 0.0)
    found.listed()
    found.begins(100.0)
    assert found.failed(NoAnswerError("reset"), 200.0) == 0.5


def test_the_server_says_when_to_come_again() -> None:
    found = pace()
    found.begins(0.0)
    assert found.failed(NoAnswerError("slow down", status=429, retry_after_s=17.0), 0.0) == 17.0


def test_watches_that_end_at_once_are_not_repeated_at_once() -> None:
    found = pace()
    found.listed()
    waits = []
    for _ in range(3):
        found.begins(0.0)
        waits.append(found.ended(0.0))
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_jitter_spreads_the_waiting(share: float) -> None:
    found = ListPause(jitter=lambda: share)
    found.begins(0.0)
    assert found.failed(NoAnswerError("refused"), 0.0) == 0.5 * (0.5 + 0.5 * share)
