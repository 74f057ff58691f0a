"""Pods that the cluster does not make: what waiting helps against, and what not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from kubernetes import client

from tests.cluster.cluster import Cluster
from tests.cluster.launchers import Place, hear, new_place, spec, until_exit
from tests.waiting import HANG_S
from torch_edl.processes.spec import ProcessExit, ProcessRefused, ProcessRuns, ProcessWaits


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, machine: None) -> Iterator[Cluster]:
    nodes = [{"name": "node-a", "cpu": "8"}]
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


@pytest.fixture
def place(cluster: Cluster) -> Iterator[Place]:
    with new_place(cluster) as made:
        yield made


def test_a_missing_right_is_waited_for_and_then_refused_with_the_rule_to_add(place: Place) -> None:
    place.allow("weak", "list", "watch")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    waits = hear(launcher, ProcessWaits)
    rule = '{apiGroups: [""], resources: ["pods"], verbs: ["create"]}'
    assert rule in waits.why
    events = until_exit(launcher)
    [refused] = [e for e in events if isinstance(e, ProcessRefused)]
    assert f"system:serviceaccount:{place.api.namespace}:weak may not create pods" in refused.why
    assert rule in refused.why
    assert events.index(refused) < len(events) - 1


def test_a_right_that_is_given_in_time_is_used(place: Place) -> None:
    launcher = place.launcher(place.api_of("weak"), forbidden_s=HANG_S)
    launcher.start(spec(0))
    hear(launcher, ProcessWaits)
    place.allow("weak", "create", "list", "watch")
    hear(launcher, ProcessRuns)


def test_a_process_that_may_not_follow_its_pods_says_so(place: Place) -> None:
    place.allow("weak", "create", "delete")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    refused = hear(launcher, ProcessRefused)
    assert 'verbs: ["list"]' in refused.why
    launcher.stop("worker", 0, grace_s=0)
    until_exit(launcher)
    assert place.pods() == {}


def test_a_pod_that_may_not_be_deleted_is_given_up(place: Place) -> None:
    place.allow("weak", "create", "list", "watch")
    launcher = place.launcher(place.api_of("weak"), forbidden_s=1.0)
    launcher.start(spec(0))
    hear(launcher, ProcessRuns)
    launcher.stop("worker", 0, grace_s=0)
    until_exit(launcher)


def test_a_pod_beyond_the_limits_of_the_namespace_is_refused_at_once(place: Place) -> None:
    core = client.CoreV1Api(place.cluster.api_client())
    core.create_namespaced_limit_range(place.api.namespace, {
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
    })  # fmt: skip
    launcher = place.launcher(resources="cpu=1,memory=2Gi")
    launcher.start(spec(0))
    refused = hear(launcher, ProcessRefused)
    assert "maximum memory usage per Container is 1Gi" in refused.why
    assert "Role" not in refused.why
    assert "--worker-resources" in refused.why
    # A role of which there are pods may get others again.
    other = place.launcher(resources="cpu=1,memory=1Gi")
    other.start(spec(1))
    hear(other, ProcessRuns, 1)
    core.create_namespaced_limit_range(place.api.namespace, {
        "metadata": {"name": "smaller"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "512Mi"}}]},
    })  # fmt: skip
    other.start(spec(2))
    waits = hear(other, ProcessWaits, 2)
    assert "maximum memory usage per Container is 512Mi" in waits.why
    core.delete_namespaced_limit_range("smaller", place.api.namespace)
    hear(other, ProcessRuns, 2)


def test_a_pod_that_waits_to_be_made_is_stopped_at_once(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0))
    hear(launcher, ProcessRuns)
    place.cluster.control(
        "fail", verb="create", resource="pods", code=429, retry_after_s=0, count=1000
    )
    launcher.start(spec(1))
    hear(launcher, ProcessWaits, 1)
    launcher.stop("worker", 1, grace_s=20.0)
    exit = hear(launcher, ProcessExit, 1)
    assert exit.was_terminated
