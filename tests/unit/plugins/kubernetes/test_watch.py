"""The mirror of the pods and the pace of calls, with a clock of their own."""

from __future__ import annotations

from typing import Any

import pytest

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, ExpiredError, NoAnswerError
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


def pace(*, watches: bool = True, jitter: float = 1.0) -> ListPause:
    """Of pods that were listed, unless nothing was asked yet."""
    found = ListPause(jitter=lambda: jitter)
    if watches:
        found.listed()
    found.begins(0.0)
    return found


def test_pods_are_listed_once_and_watched_from_there() -> None:
    found = pace(watches=False)
    assert found.lists
    found.listed()
    found.begins(0.0)
    assert found.ended(300.0) == 0.0
    assert not found.lists


@pytest.mark.parametrize(
    ("error", "after_s", "wait_s", "lists"),
    [
        (ExpiredError("410", status=410), 0.1, 0.0, True),
        (NoAnswerError("timed out"), 95.0, 0.5, True),  # a silent watch may have missed something
        (NoAnswerError("connection reset"), 30.0, 0.5, False),
        (NoAnswerError("slow down", status=429, retry_after_s=17.0), 0.0, 17.0, False),
    ],
)
def test_a_watch_that_fails_is_continued_or_the_pods_are_listed(
    error: ClusterError, after_s: float, wait_s: float, lists: bool
) -> None:
    found = pace()
    assert found.failed(error, after_s) == wait_s
    assert found.lists is lists


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (ExpiredError("410", status=410), [0.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
        (NoAnswerError("refused"), [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]),
    ],
)
def test_a_call_that_fails_again_and_again_is_made_ever_more_rarely(
    error: ClusterError, waits: list[float]
) -> None:
    found = pace()
    for wait_s in waits:
        if isinstance(error, ExpiredError):
            found.listed()
        assert found.failed(error, 0.0) == wait_s
    assert found.lists


def test_a_watch_that_lasted_forgives_earlier_failures() -> None:
    found = pace()
    for _ in range(5):
        found.failed(NoAnswerError("refused"), 0.0)
    assert found.failed(NoAnswerError("reset"), 100.0) == 0.5


def test_watches_that_end_at_once_are_not_repeated_at_once() -> None:
    found = pace()
    assert [found.ended(0.0) for _ in range(3)] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_jitter_spreads_the_waiting(share: float) -> None:
    found = pace(jitter=share)
    assert found.failed(NoAnswerError("refused"), 0.0) == 0.5 * (0.5 + 0.5 * share)
