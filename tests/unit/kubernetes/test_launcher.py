"""Pods instead of processes, against an API server; the test is their scheduler and kubelet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

from tests.cluster.cluster import Cluster
from torch_edl.kubernetes import names
from torch_edl.kubernetes.api import Api
from torch_edl.kubernetes.launcher import KubernetesLauncher
from torch_edl.kubernetes.pod import process_pod
from torch_edl.placement import KubernetesConfig
from torch_edl.processes.launcher import Known
from torch_edl.processes.spec import (
    ProcessEvent,
    ProcessExit,
    ProcessRefused,
    ProcessRuns,
    ProcessSpec,
    ProcessWaits,
)

JSON = dict[str, Any]
JOB = "ctr"
IN_TIME_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without nodes: the test says what becomes of a pod."""
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=[]) as started:
        yield started


class Place:
    """A namespace with launchers, and what its scheduler and kubelets would say."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.launchers: list[KubernetesLauncher] = []

    def launcher(self, incarnation: str = "ab") -> KubernetesLauncher:
        def manifest(spec: ProcessSpec) -> JSON:
            return process_pod(
                JOB,
                KubernetesConfig(image="edl"),
                role=spec.role,
                id=spec.id,
                incarnation=incarnation,
                command=["true"],
                env={},
                grace_s=5,
                owner=None,
            )

        made = KubernetesLauncher(self.api, job=JOB, incarnation=incarnation, manifest=manifest)
        self.launchers.append(made)
        return made

    def pods(self) -> dict[str, JSON]:
        found, _ = self.api.list("Pod", names.selector(JOB), read=dict)
        return {pod["metadata"]["name"]: pod for pod in found}

    def says(self, name: str, **status: Any) -> None:
        """A kubelet or the scheduler changes the status of a pod."""
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}"
        pod = self.cluster.request("GET", path, None)
        pod["status"] = {**pod.get("status", {}), **status}
        self.cluster.request("PUT", f"{path}/status", pod)

    def runs(self, name: str) -> None:
        self.says(name, phase="Running", containerStatuses=state(running={}))

    def ended(self, name: str, code: int, **more: Any) -> None:
        phase = "Failed" if code else "Succeeded"
        terminated = {"exitCode": code, "reason": "Error", "message": "oh no"}
        self.says(name, phase=phase, containerStatuses=state(terminated=terminated), **more)


def state(**state: Any) -> list[JSON]:
    return [{"name": "main", "image": "edl", "imageID": "", "ready": False, "restartCount": 0,
             "state": state}]  # fmt: skip


@pytest.fixture
def place(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    cluster.heal()
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    api = Api.of_kubeconfig(namespace=cluster.make_namespace())
    made = Place(cluster, api)
    yield made
    for launcher in made.launchers:
        launcher.close()
    api.close()


def spec(id: int, role: str = "worker") -> ProcessSpec:
    return ProcessSpec(role=role, id=id, module="torch_edl.worker")


def pod_name(id: int, role: str = "worker", incarnation: str = "ab") -> str:
    return names.pod(JOB, role, id, incarnation)


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + IN_TIME_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return found


def hear(launcher: KubernetesLauncher, kind: type[ProcessEvent], id: int = 0) -> Any:
    """The next event of a kind about a process; others are dropped."""

    def look() -> list[ProcessEvent]:
        return [e for e in launcher.poll() if isinstance(e, kind) and e.id == id]

    return until(look)[0]


def test_pods_are_made_at_once_and_tell_how_far_they_are(place: Place) -> None:
    launcher = place.launcher()
    for id in range(20):
        assert launcher.start(spec(id)) == 0
    until(lambda: len(place.pods()) == 20)
    name = pod_name(3)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": "0/0 nodes are available"}  # fmt: skip
    place.says(name, conditions=[condition])
    waits = until(lambda: [e for e in launcher.poll() if getattr(e, "why", "")])[0]
    assert isinstance(waits, ProcessWaits)
    assert (waits.id, waits.placed) == (3, False)
    assert "0/0 nodes are available" in waits.why
    place.runs(name)
    assert hear(launcher, ProcessRuns, 3) == ProcessRuns(role="worker", id=3)
    place.ended(name, 1)
    exit = hear(launcher, ProcessExit, 3)
    assert (exit.code, exit.why, exit.own_fault) == (1, "oh no", None)
    assert launcher.log_path("worker", 3) == f"pod/{name}"
    assert name in place.pods()  # its log can be read
    assert not any(isinstance(e, ProcessExit) for e in launcher.poll())


def test_a_pod_that_somebody_deletes_was_taken(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0))
    until(place.pods)
    hear(launcher, ProcessWaits)
    place.api.delete("Pod", pod_name(0), grace_s=0)
    exit = hear(launcher, ProcessExit)
    assert exit.was_taken
    assert exit.why == "its pod was deleted"


def test_a_preempted_pod_was_taken_whatever_its_exit_code(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0))
    until(place.pods)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                 "message": "by vip"}  # fmt: skip
    place.ended(pod_name(0), 1, conditions=[condition])
    exit = hear(launcher, ProcessExit)
    assert exit.was_taken
    assert exit.why == "preempted by a pod of higher priority: by vip"


def test_a_pod_that_is_stopped_has_ended_as_asked(place: Place) -> None:
    launcher = place.launcher()
    launcher.start(spec(0))
    until(place.pods)
    hear(launcher, ProcessWaits)
    launcher.stop("worker", 0, grace_s=2.0)
    exit = hear(launcher, ProcessExit)
    assert exit.was_terminated
    assert not exit.was_taken
    assert place.pods() == {}


def test_a_pod_that_is_stopped_before_it_is_made_leaves_nothing(place: Place) -> None:
    launcher = place.launcher()
    for id in range(10):
        launcher.start(spec(id))
        launcher.stop("worker", id, grace_s=0)
    exits: list[ProcessEvent] = []
    until(lambda: exits.extend(launcher.poll()) or len(exits) == 10)
    assert all(isinstance(e, ProcessExit) and e.was_terminated for e in exits)
    assert place.pods() == {}


def test_a_create_whose_answer_was_lost_finds_its_pod(place: Place) -> None:
    place.launcher().start(spec(0))
    until(place.pods)
    [uid] = [pod["metadata"]["uid"] for pod in place.pods().values()]
    other = place.launcher()  # as after a crash: the create is made again
    other.start(spec(0))
    hear(other, ProcessWaits)
    assert [pod["metadata"]["uid"] for pod in place.pods().values()] == [uid]


def test_a_server_without_time_is_asked_again_when_it_says(place: Place) -> None:
    place.cluster.control("fail", verb="create", resource="pods", code=429, retry_after_s=1)
    launcher = place.launcher()
    began = time.monotonic()
    launcher.start(spec(0))
    waits = hear(launcher, ProcessWaits)
    assert "no pod yet" in waits.why
    assert waits.placed
    until(place.pods)
    assert time.monotonic() - began >= 1.0


def test_a_quota_is_waited_for(place: Place) -> None:
    place.cluster.control(
        "fail", verb="create", resource="pods", code=403, message="exceeded quota: compute"
    )
    launcher = place.launcher()
    launcher.start(spec(0))
    waits = hear(launcher, ProcessWaits)
    assert not waits.placed
    assert "exceeded quota: compute" in waits.why
    until(place.pods)


def test_a_missing_permission_is_refused_at_once(place: Place) -> None:
    message = "cannot create resource pods"
    place.cluster.control("fail", verb="create", resource="pods", code=403, message=message)
    launcher = place.launcher()
    launcher.start(spec(0))
    refused = hear(launcher, ProcessRefused)
    assert message in refused.why
    assert "--service-account" in refused.why


def test_a_watch_that_breaks_misses_nothing(place: Place) -> None:
    launcher = place.launcher()
    for id in range(3):
        launcher.start(spec(id))
    until(lambda: len(place.pods()) == 3)
    hear(launcher, ProcessWaits, 0)
    place.cluster.control("fail", verb="watch", resource="pods", code=410, count=2)
    place.cluster.control("watches", drop=True)
    place.runs(pod_name(0))
    place.api.delete("Pod", pod_name(1), grace_s=0)
    events: list[ProcessEvent] = []
    until(lambda: events.extend(launcher.poll()) or any(isinstance(e, ProcessExit) for e in events))
    assert any(isinstance(e, ProcessRuns) and e.id == 0 for e in events)
    assert [e.id for e in events if isinstance(e, ProcessExit)] == [1]


def test_the_next_master_takes_over_what_is_there(place: Place) -> None:
    first = place.launcher()
    for id in range(4):
        first.start(spec(id))
    until(lambda: len(place.pods()) == 4)
    first.close()
    place.runs(pod_name(0))
    place.ended(pod_name(1), 7)
    place.api.delete("Pod", pod_name(2), grace_s=0)
    second = place.launcher()
    known = [Known(role="worker", id=id) for id in (0, 1, 2)]
    taken = second.adopt([*known, Known(role="ps", id=0, started_as="worker-3")])
    assert [each is not None for each in taken.values()] == [True, True, False, True]
    events: list[ProcessEvent] = []
    until(lambda: events.extend(second.poll()) or len(events) == 3)
    assert {type(e): (e.role, e.id) for e in events} == {
        ProcessRuns: ("worker", 0),
        ProcessExit: ("worker", 1),
        ProcessWaits: ("ps", 0),
    }
    second.rename("worker", 0, "ps", 1)
    place.ended(pod_name(0), 1)
    exit = until(lambda: [e for e in second.poll() if isinstance(e, ProcessExit)])[0]
    assert (exit.role, exit.id) == ("ps", 1)
    assert second.log_path("ps", 1) == f"pod/{pod_name(0)}"


def test_pods_of_an_earlier_life_of_the_job_are_deleted(place: Place) -> None:
    old = place.launcher(incarnation="old")
    for id in range(3):
        old.start(spec(id))
    until(lambda: len(place.pods()) == 3)
    place.ended(pod_name(2, incarnation="old"), 1)
    old.close()
    new = place.launcher(incarnation="new")
    new.start(spec(0))
    new_name = pod_name(0, incarnation="new")
    # What has ended is left for its log.
    wanted = {new_name, pod_name(2, incarnation="old")}
    until(lambda: new.poll() is None or place.pods().keys() == wanted)


def test_everything_is_ended_at_the_end(place: Place) -> None:
    launcher = place.launcher()
    for id in range(5):
        launcher.start(spec(id))
    launcher.start(spec(0, role="ps"))
    launcher.stop_all(grace_s=0)
    assert place.pods() == {}
